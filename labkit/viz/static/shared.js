// What every widget needs: elements, words that are said once, changes of its model.
//
// Owns: how a control is made. Does not know: any widget.
// labkit/viz/assets.py puts this file in front of each script that imports from it.

/** An element with its classes, attributes and words. */
export function make(tag, className = "", attributes = {}, words = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (words) node.textContent = words;
  return node;
}

export function button(words, attributes = {}) {
  return make("button", "labkit-button", { type: "button", ...attributes }, words);
}

/** A button that stays down. */
export function toggle(words) {
  return button(words, { "aria-pressed": "false" });
}

export function press(node, on) {
  node.setAttribute("aria-pressed", on);
}

/** Words of a live region: the same ones again would be read out again. */
export function say(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

/** Call `tell` when one of the model's values changes; gives back what ends it. */
export function follow(model, names, tell) {
  for (const name of names) model.on(`change:${name}`, tell);
  return () => {
    for (const name of names) model.off(`change:${name}`, tell);
  };
}
