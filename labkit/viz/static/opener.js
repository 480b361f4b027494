// A field for the file of a recorded run (labkit/viz/opener.py).
//
// Owns: reading the chosen file. Does not know: what a run is; the kernel judges it.

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "labkit-opener";
  const label = document.createElement("label");
  label.textContent = "Open a recorded run (.json or .json.gz) ";
  const field = document.createElement("input");
  field.type = "file";
  field.accept = ".json,.gz";
  const told = document.createElement("p");
  told.setAttribute("aria-live", "polite");
  const show = () => { told.textContent = model.get("told"); };
  field.addEventListener("change", async () => {
    const [file] = field.files;
    if (!file) return;
    if (file.size > model.get("largest")) {
      told.textContent = `✗ ${file.name} is larger than ${model.get("largest") / 1e6} MB. `
        + "Put it beside the notebook and use Trace.load.";
      return;
    }
    told.textContent = `Reading ${file.name} …`;
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
  model.on("change:told", show);
  show();
  return () => {
    model.off("change:told", show);
    root.remove();
  };
}

export default { render };
