// Plays a film of pictures that were drawn in Python (labkit/viz/film.py); draws nothing itself.
//
// Owns: the controls, the keys, the clock while playing, and what is pointed at: a number (Values),
// or the part that a passage speaks of (Guide). Does not know: traces, statuses, colours.
// Invariants: an <svg> here is the static figure of the same step, byte for byte (`compose`), with
// frames around what is pointed at on top; whatever has a <title> in the picture can be pointed at
// and walked to; everything that was attached is detached by the function that `render` returns.

import { button, follow, make, press, say, toggle } from "./shared.js";

const PLAY_EVERY_MS = 1100;
const LARGEST = 1.3; // how much a picture may grow to fill the page
const SVG = "http://www.w3.org/2000/svg";
const LINK = "#labkit-"; // [the tree](#labkit-tree) in a markdown cell
const KEYS = {
  ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last", " ": "play",
  w: "rounds", p: "projector", u: "unfold", n: "passage",
};
const PANELS = {
  r: ["ribbon", "text"], t: ["tree", "tree"], a: ["inspector", "accept tests"], k: ["slots", "KV slots"],
  m: ["mask", "mask"], c: ["timeline", "clock"], s: ["totals", "so far"],
};

// ---------------------------------------------------------------------------------- the film

/** base64 of deflated JSON -> the film. */
export async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** The places, [part, x, y] each, of one panel at a state. */
function placesOf(film, [reel], state) {
  return film.panels[reel].places[film.panels[reel].at[state]];
}

/** The markup of places. */
function body(film, places) {
  return places.map(([part, x, y]) => place(x, y, film.parts[part])).join("");
}

/** The markup of one panel of a board at a state. */
function markup(film, panel, state) {
  return place(panel[1], panel[2], body(film, placesOf(film, panel, state)));
}

/** Replace in `group`, one element for each of the `old` places, only what is another in `now`:
    laying out text is what a step costs. */
function edit(film, group, old, now) {
  const same = (a, b) => a === b || (a[0] === b[0] && a[1] === b[1] && a[2] === b[2]);
  if (old.length === now.length) {
    now.forEach((one, i) => {
      if (!same(old[i], one)) group.children[i].outerHTML = body(film, [one]);
    });
    return;
  }
  const shorter = Math.min(old.length, now.length);
  let head = 0;
  while (head < shorter && same(old[head], now[head])) head++;
  let tail = 0;
  while (tail < shorter - head && same(old.at(-1 - tail), now.at(-1 - tail))) tail++;
  for (let i = old.length - tail - 1; i >= head; i--) group.children[i].remove();
  const fresh = body(film, now.slice(head, now.length - tail));
  if (head < group.children.length) group.children[head].insertAdjacentHTML("beforebegin", fresh);
  else group.insertAdjacentHTML("beforeend", fresh);
}

/** The whole picture: equal to the static figure of the same step. */
export function compose(film, board, state) {
  const caption = `<title>${film.title}</title><desc>${film.sentences[state]}</desc>`;
  const { head, panels } = film.boards[board];
  return head + caption + panels.map((panel) => markup(film, panel, state)).join("") + "</svg>";
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

/** Which board of a kind suits a page of `width` pixels: the widest that need not shrink much. */
export function choose(boards, width, kind) {
  const some = boards.filter((board) => board.kind === kind);
  const best = some.find((board) => board.width * 0.82 <= width) ?? some.at(-1);
  return boards.indexOf(best);
}

// ---------------------------------------------------------------------------------- the view

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
    this.kind = "page"; // of the board: page, open (large trees unfolded) or projector
    this.unfolded = false;
    this.board = -1;
    this.drawn = [];
    this.detach = new AbortController();
    this.build(el);
    this.values = new Values(this);
    this.guide = new Guide(this);
    this.listen();
    this.fit();
  }

  build(el) {
    const root = make("div", "labkit labkit-widget labkit-stepper", { role: "group", "aria-label": this.film.label });
    root.tabIndex = 0;
    const bar = make("div", "labkit-bar");
    this.buttons = {
      first: signed("⏮", "First"), back: signed("◀", "Back"), play: button("Play"),
      next: signed("▶", "Next"), last: signed("⏭", "Last"),
    };
    this.slider = make("input", "labkit-slider", {
      type: "range", min: 0, max: this.last, step: 1, "aria-label": "Step",
    });
    this.count = make("output", "labkit-count labkit-figures");
    this.toggles = { rounds: toggle("Whole rounds"), projector: toggle("Projector") };
    if (this.film.boards.some((board) => board.kind === "open")) this.toggles.unfold = toggle("Unfold tree");
    bar.append(...Object.values(this.buttons), this.slider, this.count, ...Object.values(this.toggles));
    this.sentence = make("p", "labkit-sentence", { "aria-live": "polite" });
    this.stage = make("div", "labkit-stage");
    this.detail = make("p", "labkit-detail", { "aria-live": "polite", tabindex: "0", role: "note" });
    this.passages = make("div", "labkit-passages");
    this.keys = make("p", "labkit-keys labkit-small");
    this.head = make("div", "labkit-head");
    this.head.append(bar, this.sentence, this.detail);
    root.append(make("div", "labkit-title", {}, this.film.label), this.head, this.stage, this.passages, this.keys);
    el.append(root);
    this.root = root;
  }

  listen() {
    const { signal } = this.detach;
    for (const [name, node] of Object.entries({ ...this.buttons, ...this.toggles })) {
      node.addEventListener("click", () => this.act(name), { signal });
    }
    this.slider.addEventListener("input", () => this.scrub(), { signal });
    // On the window and first in line: JupyterLab listens on the document and would act on these
    // keys. Only our keys, only with the focus in here, are taken.
    window.addEventListener("keydown", (event) => this.press(event), { signal, capture: true });
    document.addEventListener("visibilitychange", () => document.hidden && this.pause(), { signal });
    document.addEventListener("fullscreenchange", () => this.leftFullscreen(), { signal });
    this.unfollow = follow(this.model, ["step", "grain"], () => this.show());
    this.inSight = false;
    this.seen = new IntersectionObserver(([entry]) => {
      this.inSight = entry.isIntersecting;
      if (!this.inSight) this.pause();
    });
    this.seen.observe(this.root);
    this.sized = new ResizeObserver(() => this.fit());
    this.sized.observe(this.root);
  }

  press(event) {
    if (!event.composedPath().includes(this.root)) return;
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const walks = this.values.walks(key);
    if (!walks && !(key in KEYS && this.can(KEYS[key]))) return;
    event.stopImmediatePropagation();
    if (key === " " && event.target.tagName === "BUTTON") return; // space presses a button
    event.preventDefault();
    if (walks) this.values.walk(key);
    else this.act(KEYS[key]);
  }

  can(name) {
    if (name === "unfold") return "unfold" in this.toggles;
    return name !== "passage" || this.film.notes.length > 0;
  }

  act(name) {
    if (name === "play") return this.timer ? this.pause() : this.play();
    if (name === "rounds") return this.setGrain();
    if (name === "projector") return this.setProjector(this.kind !== "projector");
    if (name === "unfold") return this.setUnfolded();
    if (name === "passage") return this.guide.next();
    this.pause();
    return this.go(this.target(name));
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
    this.buttons.play.textContent = playing ? "Pause" : "Play";
    this.sentence.setAttribute("aria-live", playing ? "off" : "polite");
  }

  setGrain() {
    this.tell("grain", this.model.get("grain") === "round" ? "phase" : "round");
  }

  setUnfolded() {
    this.unfolded = !this.unfolded;
    this.kind = this.unfolded ? "open" : "page";
    this.toggles.unfold.textContent = this.unfolded ? "Fold tree" : "Unfold tree";
    this.fit();
  }

  /** Few panels, large, on the whole screen where the page lets us have it. */
  setProjector(on) {
    this.kind = on ? "projector" : this.unfolded ? "open" : "page";
    for (const name of ["labkit-projector", "labkit-large"]) this.root.classList.toggle(name, on);
    if (on) this.root.requestFullscreen?.().catch(() => {}); // refused: large in its place
    else if (document.fullscreenElement === this.root) document.exitFullscreen();
    this.fit();
  }

  leftFullscreen() {
    const ours = document.fullscreenElement === this.root;
    if (this.wasFull && !ours && this.kind === "projector") this.setProjector(false);
    this.wasFull = ours;
  }

  fit() {
    const board = choose(this.film.boards, this.root.clientWidth, this.kind);
    if (board !== this.board) this.lay(board);
    const { width, height } = this.film.boards[board];
    const large = this.kind === "projector";
    const full = document.fullscreenElement === this.root;
    const room = full ? Math.max(200, this.root.clientHeight - this.stage.offsetTop - 16) : Infinity;
    const most = large ? Math.min(this.root.clientWidth, (room * width) / height) : width * LARGEST;
    this.svg.style.width = "100%";
    this.svg.style.maxWidth = `${Math.round(most)}px`;
    this.show();
  }

  lay(board) {
    this.board = board;
    const { width, head, panels: names } = this.film.boards[board];
    this.stage.innerHTML = `${head}<title></title><desc></desc></svg>`;
    this.svg = this.stage.firstElementChild;
    this.holders = names.map(([, , , key]) => {
      const holder = this.svg.appendChild(document.createElementNS(SVG, "g"));
      holder.dataset.panel = key;
      return holder;
    });
    this.over = this.svg.appendChild(document.createElementNS(SVG, "g")); // frames
    this.drawn = [];
    this.svg.dataset.board = width;
  }

  show() {
    const step = this.model.get("step");
    const ends = this.model.get("grain") === "round" ? this.film.rounds[step] : undefined;
    const sentence = ends ?? this.film.sentences[step];
    if (this.sentence.innerHTML !== sentence) this.sentence.innerHTML = sentence;
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", this.sentence.textContent.split(":")[0]);
    this.count.textContent = `${step} / ${this.last}`;
    press(this.toggles.rounds, this.model.get("grain") === "round");
    press(this.toggles.projector, this.kind === "projector");
    if (this.toggles.unfold) press(this.toggles.unfold, this.unfolded);
    for (const name of ["first", "back"]) disable(this.buttons[name], step === 0);
    for (const name of ["last", "next"]) disable(this.buttons[name], step === this.last);
    this.film.boards[this.board].panels.forEach((panel, i) => {
      const now = placesOf(this.film, panel, step);
      if (!this.drawn[i]) this.holders[i].innerHTML = markup(this.film, panel, step);
      else if (this.drawn[i] !== now) edit(this.film, this.holders[i].firstChild, this.drawn[i], now);
      this.drawn[i] = now;
    });
    this.svg.querySelector("title").innerHTML = this.film.title;
    this.svg.querySelector("desc").innerHTML = this.film.sentences[step];
    this.guide.follow(step);
    this.values.redraw();
    const can = Object.entries(PANELS).filter(([, [panel]]) => this.panel(panel));
    this.keys.textContent = "Keys, when this box has the focus: ← → step, Home End, space plays, W whole "
      + `rounds, P projector${this.can("unfold") ? ", U unfolds the tree" : ""}`
      + `${this.can("passage") ? ", N next passage" : ""}. Numbers, then ↑ ↓ and Escape: `
      + `${can.map(([key, [, name]]) => `${key.toUpperCase()} ${name}`).join(", ")}.`;
  }

  /** The place of a panel on this board, if it is on it and not empty. */
  panel(name) {
    return this.holders.find((holder) => holder.dataset.panel === name && holder.firstChild?.firstChild);
  }

  /** A frame around shapes, with a sign in its corner: colour alone would tell nothing. */
  frame(shapes, className, sign) {
    const scale = this.svg.getBoundingClientRect().width / this.film.boards[this.board].width || 1;
    const origin = this.svg.getBoundingClientRect();
    const boxes = shapes.map((shape) => shape.getBoundingClientRect());
    const left = (Math.min(...boxes.map((b) => b.left)) - origin.left) / scale - 4;
    const top = (Math.min(...boxes.map((b) => b.top)) - origin.top) / scale - 4;
    const right = (Math.max(...boxes.map((b) => b.right)) - origin.left) / scale + 4;
    const foot = (Math.max(...boxes.map((b) => b.bottom)) - origin.top) / scale + 4;
    const group = this.over.appendChild(document.createElementNS(SVG, "g"));
    group.setAttribute("class", className);
    // a panel has its heading in the left corner
    const x = right - left > 60 ? right - 11 : Math.max(11, left);
    const y = Math.max(11, top);
    group.innerHTML = `<rect x="${left}" y="${top}" width="${right - left}" height="${foot - top}" rx="5"/>`
      + (sign ? `<circle cx="${x}" cy="${y}" r="10"/><text x="${x}" y="${y + 5}">${sign}</text>` : "");
    return group;
  }

  /** Scroll a shape into sight: the head stays at the top and would lie over it. */
  bring(shape) {
    shape.style.scrollMarginTop = `${this.head.offsetHeight + 8}px`;
    shape.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  close() {
    this.pause();
    this.detach.abort();
    this.seen.disconnect();
    this.sized.disconnect();
    this.unfollow();
    if (document.fullscreenElement === this.root) document.exitFullscreen();
    this.root.remove();
  }
}

// ---------------------------------------------------------------------------------- numbers

/** What has a <title> in the picture: one sentence each, by pointer or by keys. The cursor is kept
    as (panel, place in it), since shapes are drawn anew at every step. */
class Values {
  constructor(view) {
    this.view = view;
    this.cursor = undefined;
    this.lit = undefined;
    const { signal } = view.detach;
    for (const kind of ["pointerover", "click"]) {
      view.stage.addEventListener(kind, (event) => this.point(event.target), { signal });
    }
    view.stage.addEventListener("pointerleave", () => this.point(undefined), { signal });
  }

  /** The shapes of a panel, in order; neighbours that say the same count once. */
  of(panel) {
    const titles = [...(this.view.panel(panel)?.querySelectorAll("title") ?? [])];
    return titles
      .filter((title, i) => title.textContent !== titles[i - 1]?.textContent)
      .map((title) => title.parentElement);
  }

  walks(key) {
    if (key in PANELS) return this.of(PANELS[key][0]).length > 0;
    return this.cursor !== undefined && ["ArrowUp", "ArrowDown", "Escape"].includes(key);
  }

  walk(key) {
    if (key === "Escape") this.cursor = undefined;
    else if (key in PANELS) this.cursor = { panel: PANELS[key][0], at: 0 };
    else this.cursor.at += key === "ArrowDown" ? 1 : -1;
    this.node = undefined;
    this.redraw();
    if (this.mark) this.view.bring(this.mark);
  }

  /** The nearest shape around the pointer that says something. */
  point(shape) {
    let found = shape;
    while (found && found !== this.view.svg && !title(found)) found = found.parentElement;
    if (found === this.view.svg || !found || !this.view.stage.contains(found)) found = undefined;
    this.cursor = this.node = undefined;
    if (found) {
      const panel = found.closest("[data-panel]")?.dataset.panel;
      const words = title(found).textContent;
      const all = panel ? this.of(panel) : [];
      const at = all.includes(found) ? all.indexOf(found) : all.findIndex((one) => title(one).textContent === words);
      this.cursor = at < 0 ? undefined : { panel, at };
    }
    this.redraw();
  }

  /** Light up what the cursor is on; of a node also its path and its row of the mask. */
  redraw() {
    const { stage, detail } = this.view;
    for (const shape of stage.querySelectorAll(".lk-lit")) shape.classList.remove("lk-lit");
    this.mark?.remove();
    this.mark = undefined;
    const all = this.cursor ? this.of(this.cursor.panel) : [];
    detail.classList.toggle("labkit-hint", !all.length);
    if (!all.length) {
      say(detail, HINT);
      return;
    }
    // a node of the draft stays the same one while other chips come and go
    const same = this.node && all.findIndex((shape) => nodeOf(shape) === this.node);
    if (same > -1) this.cursor.at = same;
    this.cursor.at = Math.max(0, Math.min(all.length - 1, this.cursor.at));
    const shape = all[this.cursor.at];
    this.node = nodeOf(shape);
    say(detail, title(shape).textContent);
    if (this.node !== undefined) this.path(this.node);
    this.mark = this.view.frame([shape], "lk-cursor", "");
  }

  path(node) {
    const { stage } = this.view;
    const chip = stage.querySelector(`[data-node="${node}"]`);
    for (const one of chip?.dataset.path.split(" ") ?? []) {
      for (const kind of ["node", "edge"]) {
        stage.querySelector(`[data-${kind}="${one}"]`)?.classList.add("lk-lit");
      }
    }
    stage.querySelector(`[data-row="${node}"]`)?.classList.add("lk-lit");
  }
}

const HINT = "Point at anything in the pictures, or press the key of a panel, to read its numbers.";

function title(shape) {
  return shape.tagName === "svg" ? undefined : [...shape.children].find((node) => node.tagName === "title");
}

function nodeOf(shape) {
  return shape.dataset.node ?? shape.dataset.row;
}

// ---------------------------------------------------------------------------------- passages

/** Passages below the pictures: the one that is current outlines the part that it speaks of. */
class Guide {
  constructor(view) {
    this.view = view;
    this.notes = view.film.notes;
    this.current = -1;
    this.outside = undefined; // part that a link elsewhere on the page points at
    if (this.notes.length) this.build();
    const { signal } = view.detach;
    for (const kind of ["pointerover", "focusin", "click"]) {
      document.addEventListener(kind, (event) => this.hear(event), { signal });
    }
  }

  build() {
    const { signal } = this.view.detach;
    const list = make("ol", "labkit-notes");
    this.items = this.notes.map((note, i) => {
      const item = list.appendChild(make("li", "labkit-note"));
      const words = make("button", "labkit-passage", { type: "button" });
      const number = make("span", "labkit-number", { "aria-hidden": "true" }, i + 1);
      words.append(number, note.words, make("span", "labkit-place", {}, ` (${note.place})`));
      item.append(words);
      for (const kind of ["pointerenter", "focus"]) words.addEventListener(kind, () => this.choose(i), { signal });
      words.addEventListener("click", () => this.visit(i), { signal });
      return words;
    });
    this.view.passages.append(list);
  }

  holds(i, step) {
    const { states } = this.notes[i];
    return states === null || states.includes(step);
  }

  /** The passage of this step; one that still holds stays. */
  follow(step) {
    const narrow = this.notes.findIndex((note) => note.states?.includes(step));
    const stays = this.current >= 0 && this.holds(this.current, step)
      && (this.notes[this.current].states !== null || narrow < 0);
    if (!stays) this.current = narrow >= 0 ? narrow : this.notes.findIndex((_, i) => this.holds(i, step));
    this.redraw();
  }

  choose(i) {
    this.current = i;
    this.redraw();
  }

  /** Go to where the passage holds, and show what it speaks of. */
  visit(i) {
    const { states } = this.notes[i];
    this.current = i;
    const step = this.view.model.get("step");
    if (states?.length && !states.includes(step)) this.view.go(states.find((s) => s > step) ?? states[0]);
    else this.redraw();
  }

  next() {
    this.visit((this.current + 1) % this.notes.length);
    this.items[this.current].scrollIntoView({ block: "nearest" });
  }

  /** A link of the page, to #labkit-tree and the like, points while it is pointed at. */
  hear(event) {
    const link = event.target.closest?.(`a[href*="${LINK}"]`);
    const part = link?.getAttribute("href").split(LINK)[1];
    if (!part && event.type === "click") return;
    if (link && event.type === "click") event.preventDefault();
    const heard = this.view.inSight ? part : undefined;
    if (heard === this.outside) return;
    this.outside = heard;
    this.redraw();
  }

  redraw() {
    this.mark?.remove();
    this.mark = undefined;
    this.items?.forEach((item, i) => {
      item.classList.toggle("labkit-current", i === this.current && !this.outside);
      if (i === this.current && !this.outside) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    });
    const note = this.notes[this.current];
    const shapes = this.outside ? this.shapes(this.outside) : note ? this.shapes(note.part) : [];
    if (shapes.length) this.mark = this.view.frame(shapes, "lk-spoken", this.outside ? "☞" : this.current + 1);
  }

  /** A panel, or shapes of one: of the tests' thresholds and draws those of the latest test. */
  shapes(part) {
    const whole = this.view.panel(part);
    if (whole) return [whole];
    const parts = (name) => [...this.view.stage.querySelectorAll(`[data-part="${CSS.escape(name)}"]`)];
    if (part === "residual") return parts(part);
    const latest = Math.max(0, parts("u").length - 1);
    return parts(part).slice(latest, latest + 1);
  }
}

// ---------------------------------------------------------------------------------- elements

/** Said, not done: a disabled button would lose the focus, and the keys with it. */
function disable(node, off) {
  node.setAttribute("aria-disabled", off);
}

/** A button with a sign before its word. */
function signed(sign, words) {
  const node = button(words);
  // as text, not as an emoji
  node.prepend(make("span", "labkit-icon", { "aria-hidden": "true" }, `${sign}\uFE0E`));
  return node;
}

export default { render };
