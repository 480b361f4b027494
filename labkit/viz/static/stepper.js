// Plays a film of pictures that were drawn in Python (labkit/viz/film.py); draws nothing itself.
//
// Owns: the controls, the keys, the clock while playing. Does not know: traces, statuses, colours.
// Invariants: an <svg> here is the static figure of the same step, byte for byte (`compose`);
// everything that was attached is detached by the function that `render` returns.

const PLAY_EVERY_MS = 1100;
const LARGEST = 1.15; // how much a picture may grow to fill the page
const LARGER = 1.6; // the same, for a room
const KEYS = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last", " ": "play" };

/** base64 of deflated JSON -> the film. */
export async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** The markup of each panel of a board at a state, in the board's order. */
export function panels(film, board, state) {
  return film.boards[board].panels.map(([reel, x, y]) => {
    const places = film.panels[reel].places[film.panels[reel].at[state]];
    const body = places.map(([part, px, py]) => place(px, py, film.parts[part]));
    return place(x, y, body.join(""));
  });
}

/** The whole picture: equal to the static figure of the same step. */
export function compose(film, board, state) {
  const caption = `<title>${film.title}</title><desc>${film.sentences[state]}</desc>`;
  return film.boards[board].head + caption + panels(film, board, state).join("") + "</svg>";
}

/** Replace each panel's differences by the frames themselves; unchanged places are shared. */
export function develop(film) {
  for (const panel of film.panels) {
    let places = [];
    panel.places = panel.frames.map(([head, tail, ...flat]) => {
      const middle = [];
      for (let i = 0; i < flat.length; i += 3) middle.push(flat.slice(i, i + 3));
      places = [...places.slice(0, head), ...middle, ...places.slice(places.length - tail)];
      return places;
    });
  }
  return film;
}

function place(x, y, markup) {
  return `<g transform="translate(${x} ${y})">${markup}</g>`;
}

/** Which board suits a page of `width` pixels: the widest that need not shrink much. */
export function choose(boards, width, larger) {
  const fits = boards.findIndex((board) => board.width * 0.82 <= width);
  const best = fits < 0 ? boards.length - 1 : fits;
  return Math.min(boards.length - 1, best + (larger ? 1 : 0));
}

async function render({ model, el }) {
  if (!globalThis.DecompressionStream) {
    el.textContent = "The stepper needs a newer browser; the static picture works: display(stepper.picture).";
    return undefined;
  }
  const film = develop(await unpack(model.get("film")));
  const view = new View(model, film, el);
  return () => view.close();
}

class View {
  constructor(model, film, el) {
    this.model = model;
    this.film = film;
    this.last = film.sentences.length - 1;
    this.larger = false;
    this.board = -1;
    this.drawn = [];
    this.detach = new AbortController();
    this.build(el);
    this.listen();
    this.fit();
  }

  build(el) {
    const root = make("div", "labkit labkit-stepper", { role: "group", "aria-label": this.film.label });
    root.tabIndex = 0;
    const bar = make("div", "labkit-bar");
    this.buttons = {
      first: button("⏮", "First"),
      back: button("◀", "Back"),
      play: button("", "Play"),
      next: button("▶", "Next"),
      last: button("⏭", "Last"),
    };
    this.slider = make("input", "labkit-slider", {
      type: "range", min: 0, max: this.last, step: 1, "aria-label": "Step",
    });
    this.count = make("output", "labkit-count");
    this.rounds = toggle("Whole rounds");
    this.large = toggle("Larger");
    bar.append(...Object.values(this.buttons), this.slider, this.count, this.rounds, this.large);
    this.sentence = make("p", "labkit-sentence", { "aria-live": "polite" });
    this.stage = make("div", "labkit-stage");
    this.detail = make("p", "labkit-detail", { "aria-live": "polite" });
    this.lit = undefined; // the node of the draft that the reader points at
    const keys = make("p", "labkit-keys");
    keys.textContent = "Keys, when this box has the focus: ← → step, Home End, space plays."
      + (this.film.trees ? " Point at a node of the draft tree, or press T and then ↑ ↓." : "");
    const head = make("div", "labkit-head");
    head.append(bar, this.sentence);
    if (this.film.trees) head.append(this.detail);
    root.append(heading(this.film.label), head, this.stage, keys);
    el.append(root);
    this.root = root;
  }

  listen() {
    const { signal } = this.detach;
    for (const [name, node] of Object.entries(this.buttons)) {
      node.addEventListener("click", () => this.act(name), { signal });
    }
    this.slider.addEventListener("input", () => this.scrub(), { signal });
    this.rounds.addEventListener("click", () => this.setGrain(), { signal });
    this.large.addEventListener("click", () => this.setLarger(), { signal });
    // On the window and first in line: JupyterLab listens on the document and would act on these
    // keys. Only our keys, only with the focus in here, are taken.
    window.addEventListener("keydown", (event) => this.press(event), { signal, capture: true });
    document.addEventListener("visibilitychange", () => document.hidden && this.pause(), { signal });
    for (const kind of ["pointerover", "focusin", "click"]) {
      this.stage.addEventListener(kind, (event) => this.light(pointed(event.target)), { signal });
    }
    this.stage.addEventListener("pointerleave", () => this.light(undefined), { signal });
    this.onStep = () => this.show();
    this.model.on("change:step", this.onStep);
    this.model.on("change:grain", this.onStep);
    this.seen = new IntersectionObserver(([entry]) => entry.isIntersecting || this.pause());
    this.seen.observe(this.root);
    this.sized = new ResizeObserver(() => this.fit());
    this.sized.observe(this.root);
  }

  press(event) {
    const action = KEYS[event.key];
    const ours = event.composedPath().includes(this.root);
    if (ours && this.walk(event)) return;
    if (!ours || !action || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    event.stopImmediatePropagation();
    if (event.key === " " && event.target.tagName === "BUTTON") return; // space presses a button
    event.preventDefault();
    this.act(action);
  }

  act(name) {
    if (name === "play") return this.timer ? this.pause() : this.play();
    this.pause();
    return this.go(this.target(name));
  }

  /** T puts the focus on the draft tree; ↑ and ↓ go from node to node, Escape leaves it. */
  walk(event) {
    const nodes = [...this.stage.querySelectorAll("[data-node]")];
    const at = nodes.findIndex((node) => node === document.activeElement || node === event.target);
    const moves = { ArrowUp: at - 1, ArrowDown: at + 1, Escape: -1 };
    const starts = event.key === "t" || event.key === "T";
    if (event.ctrlKey || event.altKey || event.metaKey || !nodes.length) return false;
    if (starts ? false : at < 0 || !(event.key in moves)) return false;
    event.stopImmediatePropagation();
    event.preventDefault();
    if (event.key === "Escape") {
      this.root.focus();
      this.light(undefined);
    } else {
      const next = starts ? 0 : Math.max(0, Math.min(nodes.length - 1, moves[event.key]));
      nodes[next].focus({ preventScroll: false });
    }
    return true;
  }

  /** Light up a node, its path and its row of the mask, and say what is known of it. */
  light(node) {
    this.lit = node;
    for (const shape of this.stage.querySelectorAll(".lk-lit")) shape.classList.remove("lk-lit");
    const chip = node && this.stage.querySelector(`[data-node="${node}"]`);
    this.detail.textContent = chip ? chip.querySelector("title").textContent : this.hint();
    if (!chip) return;
    for (const one of chip.dataset.path.split(" ")) {
      for (const kind of ["node", "edge"]) {
        this.stage.querySelector(`[data-${kind}="${one}"]`)?.classList.add("lk-lit");
      }
    }
    this.stage.querySelector(`[data-row="${node}"]`)?.classList.add("lk-lit");
  }

  hint() {
    return this.stage.querySelector("[data-node]") ? "Point at a node to see its numbers and its path." : "";
  }

  /** Where an action leads from here, at the current grain. */
  target(name) {
    const step = this.model.get("step");
    const stops = this.stops();
    if (name === "first") return 0;
    if (name === "last") return this.last;
    if (name === "next") return stops.find((stop) => stop > step) ?? this.last;
    return stops.findLast((stop) => stop < step) ?? 0;
  }

  stops() {
    return this.model.get("grain") === "round"
      ? Object.keys(this.film.rounds).map(Number)
      : this.film.sentences.map((_, i) => i);
  }

  scrub() {
    this.pause();
    const wanted = Number(this.slider.value);
    const stops = this.stops();
    this.go(stops.reduce((best, s) => (Math.abs(s - wanted) < Math.abs(best - wanted) ? s : best)));
  }

  go(step) {
    this.tell("step", step);
  }

  /** Saved at once: an unsaved value would be overwritten by the kernel's echo of an older one.
      The widget manager itself merges what changes while a message is under way. */
  tell(name, value) {
    this.model.set(name, value);
    this.show();
    this.model.save_changes();
  }

  play() {
    if (this.model.get("step") >= this.last) this.go(0);
    this.timer = setInterval(() => this.tick(), PLAY_EVERY_MS);
    this.sayPlaying(true);
  }

  tick() {
    if (!this.root.isConnected || this.model.get("step") >= this.last) return this.pause();
    return this.go(this.target("next"));
  }

  pause() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = undefined;
    this.sayPlaying(false);
  }

  sayPlaying(playing) {
    label(this.buttons.play, "", playing ? "Pause" : "Play");
    this.sentence.setAttribute("aria-live", playing ? "off" : "polite");
  }

  setGrain() {
    this.tell("grain", this.model.get("grain") === "round" ? "phase" : "round");
  }

  setLarger() {
    this.larger = !this.larger;
    this.large.setAttribute("aria-pressed", this.larger);
    this.root.classList.toggle("labkit-larger", this.larger);
    this.fit();
  }

  fit() {
    const board = choose(this.film.boards, this.root.clientWidth, this.larger);
    if (board !== this.board) {
      this.board = board;
      const { width, head } = this.film.boards[board];
      this.stage.innerHTML = `${head}<title></title><desc></desc></svg>`;
      this.svg = this.stage.firstElementChild;
      this.holders = this.film.boards[board].panels.map(() =>
        this.svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "g")));
      this.drawn = [];
      this.svg.dataset.board = width;
    }
    const most = this.film.boards[board].width * (this.larger ? LARGER : LARGEST);
    this.svg.style.width = "100%";
    this.svg.style.maxWidth = `${Math.round(most)}px`;
    this.show();
  }

  show() {
    const step = this.model.get("step");
    const ends = this.model.get("grain") === "round" ? this.film.rounds[step] : undefined;
    const sentence = ends ?? this.film.sentences[step];
    if (this.sentence.innerHTML !== sentence) this.sentence.innerHTML = sentence;
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", this.sentence.textContent.split(":")[0]);
    this.count.textContent = `${step} / ${this.last}`;
    this.rounds.setAttribute("aria-pressed", this.model.get("grain") === "round");
    for (const name of ["first", "back"]) disable(this.buttons[name], step === 0);
    for (const name of ["last", "next"]) disable(this.buttons[name], step === this.last);
    const focused = this.stage.contains(document.activeElement) && document.activeElement.dataset.node;
    panels(this.film, this.board, step).forEach((markup, i) => {
      if (this.drawn[i] !== markup) this.holders[i].innerHTML = markup;
      this.drawn[i] = markup;
    });
    if (this.film.trees) this.wake(focused);
    this.svg.querySelector("title").innerHTML = this.film.title;
    this.svg.querySelector("desc").innerHTML = this.film.sentences[step];
  }

  /** Nodes drawn anew can be focused, are named, and stay lit if they still exist. */
  wake(focused) {
    for (const node of this.stage.querySelectorAll("[data-node]")) {
      node.setAttribute("tabindex", "-1");
      node.setAttribute("role", "img");
      node.setAttribute("aria-label", node.querySelector("title").textContent);
    }
    if (focused) (this.stage.querySelector(`[data-node="${focused}"]`) ?? this.root).focus();
    this.light(this.lit);
  }

  close() {
    this.pause();
    this.detach.abort();
    this.seen.disconnect();
    this.sized.disconnect();
    this.model.off("change:step", this.onStep);
    this.model.off("change:grain", this.onStep);
    this.root.remove();
  }
}

/** The number of the draft's node that a shape belongs to. */
function pointed(shape) {
  const found = shape.closest?.("[data-node], [data-row]");
  return found?.dataset.node ?? found?.dataset.row;
}

function make(tag, className, attributes = {}) {
  const node = document.createElement(tag);
  node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** Said, not done: a disabled button would lose the focus, and the keys with it. */
function disable(node, off) {
  node.setAttribute("aria-disabled", off);
}

function heading(words) {
  const node = make("div", "labkit-title");
  node.textContent = words;
  return node;
}

function button(icon, words) {
  const node = make("button", "labkit-button", { type: "button" });
  label(node, icon, words);
  return node;
}

function label(node, icon, words) {
  const sign = make("span", "labkit-icon", { "aria-hidden": "true" });
  sign.textContent = icon && `${icon}\uFE0E`; // as text, not as an emoji
  node.replaceChildren(sign, words);
}

function toggle(words) {
  const node = make("button", "labkit-button labkit-toggle", { type: "button", "aria-pressed": "false" });
  node.textContent = words;
  return node;
}

export default { render };
