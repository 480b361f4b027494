"""Python imports this by itself when it starts, where its folder is on the path."""

import network_guard

network_guard.install_from_environment()
