// A field for the file of a recorded run (labkit/viz/opener.py).
//
// Owns: reading the chosen file. Does not know: what a run is; the kernel judges it.

import { follow, make, say } from "./shared.js";

function render({ model, el }) {
  const root = make("div", "labkit labkit-widget labkit-opener");
  const label = make("label", "", {}, "Open a recorded run (.json or .json.gz) ");
  const field = make("input", "", { type: "file", accept: ".json,.gz" });
  const told = make("p", "", { "aria-live": "polite" });
  const show = () => say(told, model.get("told"));
  field.addEventListener("change", async () => {
    const [file] = field.files;
    if (!file) return;
    if (file.size > model.get("largest")) {
      say(told, `✗ ${file.name} is larger than ${model.get("largest") / 1e6} MB. `
        + "Put it beside the notebook and use Trace.load.");
      return;
    }
    say(told, `Reading ${file.name} …`);
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = "";
    for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
    model.set("file", [file.name, btoa(text)]);
    model.save_changes();
    field.value = ""; // the same file can be chosen again
  });
  label.append(field);
  root.append(label, told);
  el.append(root);
  const unfollow = follow(model, ["told"], show);
  show();
  return () => {
    unfollow();
    root.remove();
  };
}

export default { render };
