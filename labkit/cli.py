"""stub"""


def main() -> None:
    """Stub."""
