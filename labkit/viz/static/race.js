// Shows a race while it runs, and replays it at true speed; measures and decides nothing.
//
// Owns: the buttons, the lanes as they stand, the clock of the replay. Does not know: models.
// Invariants: a lane is drawn from its turns alone, [seconds, tokens, text] so far; everything that
// was attached is detached by the function that `render` returns.

import { button, follow, make, press, say, toggle } from "./shared.js";

const SHOWN = 600; // characters of a lane's text that stay on the page
const WORDS = {
  ready: "Ready.", preparing: "Warming up: two rounds of each lane, not counted.",
  running: "Running.", finished: "Finished.", stopped: "Stopped.",
};

/** The turns of a lane that were over after `seconds` of its own. */
export function until(turns, seconds) {
  let count = turns.findIndex((turn) => turn[0] > seconds);
  if (count < 0) count = turns.length;
  return turns.slice(0, count);
}

/** What a common clock shows: all unfinished lanes have come at least so far. */
export function clock(lanes) {
  const last = (lane) => (lane.turns.length ? lane.turns[lane.turns.length - 1][0] : 0);
  const running = lanes.filter((lane) => !lane.done).map(last);
  return running.length ? Math.min(...running) : Math.max(0, ...lanes.map(last));
}

/** Names in the order in which they crossed the line, at `seconds` of their own. */
export function order(lanes, seconds) {
  return lanes
    .map((lane, i) => ({ i, at: lane.done ? lane.turns[lane.turns.length - 1]?.[0] ?? 0 : Infinity }))
    .filter(({ at }) => at < Infinity && at <= seconds)
    .sort((a, b) => a.at - b.at)
    .map(({ i }) => i);
}

function render({ model, el }) {
  const view = new View(model, el);
  return () => view.close();
}

class View {
  constructor(model, el) {
    this.model = model;
    this.course = model.get("course");
    this.detach = new AbortController();
    this.build(el);
    this.unfollow = follow(model, ["lanes", "phase", "sentence", "still"], () => this.show());
    this.show();
  }

  build(el) {
    const root = make("div", "labkit labkit-widget labkit-race", { role: "group", "aria-label": "The race" });
    this.go = button("Start");
    this.go.classList.add("labkit-first");
    this.replay = button("Replay at true speed");
    this.large = toggle("Larger");
    this.time = make("output", "lr-time labkit-figures", { "aria-label": "Time of the race" });
    const bar = make("div", "labkit-bar");
    bar.append(this.go, this.replay, this.large, this.time);
    const head = make("div", "lr-head");
    head.append(make("div", "labkit-title", {}, `The race to ${this.course.goal} tokens`), bar);
    this.sentence = make("p", "lr-sentence", { "aria-live": "polite" });
    this.lanes = this.course.lanes.map((lane) => new Lane(lane, this.course.goal));
    const note = make("p", "lr-note labkit-small", {}, this.course.note);
    // scrolls where the page is narrow, so the keyboard has to reach it
    this.still = make("div", "lr-still", { role: "region", "aria-label": "The race on one time axis", tabindex: 0 });
    root.append(head, this.sentence, ...this.lanes.map((lane) => lane.node), this.still, note);
    el.append(root);
    this.root = root;
    const { signal } = this.detach;
    this.go.addEventListener("click", () => this.ask(), { signal });
    this.replay.addEventListener("click", () => this.play(), { signal });
    this.large.addEventListener("click", () => this.enlarge(), { signal });
  }

  ask() {
    this.quiet();
    this.model.send({ kind: this.busy() ? "stop" : "start" });
  }

  busy() {
    return ["preparing", "running"].includes(this.model.get("phase"));
  }

  enlarge() {
    press(this.large, this.root.classList.toggle("labkit-large"));
  }

  /** The model said something new: show how things stand, and no replay. */
  show() {
    this.quiet();
    const phase = this.model.get("phase");
    const over = phase === "finished" || phase === "stopped";
    this.go.textContent = this.busy() ? "Stop" : over ? "Start again" : "Start";
    this.replay.hidden = phase !== "finished";
    this.root.dataset.phase = phase;
    say(this.sentence, over ? this.model.get("sentence") : WORDS[phase]);
    if (this.shown !== this.model.get("still")) {
      this.shown = this.model.get("still");
      this.still.innerHTML = this.shown;
      this.still.hidden = !this.shown;
    }
    this.draw(Infinity);
  }

  /** All lanes as they stood after `seconds`. */
  draw(seconds) {
    const lanes = this.model.get("lanes");
    const finished = order(lanes, seconds);
    const speeds = lanes.map(({ turns }) => turns.length && turns[turns.length - 1][1] / turns[turns.length - 1][0]);
    const over = this.model.get("phase") === "finished";
    this.lanes.forEach((lane, i) => {
      const place = finished.indexOf(i);
      const ratio = over && place >= 0 && i > 0 && speeds[0] ? speeds[i] / speeds[0] : undefined;
      lane.draw(until(lanes[i]?.turns ?? [], seconds), place, ratio);
    });
    const now = seconds === Infinity ? clock(lanes) : Math.min(seconds, Math.max(0, ...lanes.map(end)));
    this.time.textContent = `${now.toFixed(2)} s`;
  }

  play() {
    this.quiet();
    const last = Math.max(...this.model.get("lanes").map(end));
    const start = performance.now();
    const tick = (now) => {
      const seconds = (now - start) / 1000;
      this.draw(seconds);
      if (!this.root.isConnected || seconds >= last) return this.quiet(true);
      this.frame = requestAnimationFrame(tick);
      return undefined;
    };
    this.root.dataset.replay = "";
    this.frame = requestAnimationFrame(tick);
  }

  /** End a replay that is under way. */
  quiet(whole) {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = undefined;
    delete this.root.dataset.replay;
    if (whole) this.draw(Infinity);
  }

  close() {
    this.quiet();
    this.detach.abort();
    this.unfollow();
    this.root.remove();
  }
}

/** One lane: name, track with a finish line, numbers, the text so far. */
class Lane {
  constructor({ name, colour }, goal) {
    this.goal = goal;
    this.count = 0;
    this.node = make("section", "lr-lane", { "aria-label": name });
    this.node.style.setProperty("--lr", colour);
    const top = make("div", "lr-top");
    this.numbers = make("span", "lr-numbers labkit-figures");
    this.result = make("span", "lr-result");
    top.append(make("span", "lr-name", {}, name), this.numbers, this.result);
    this.track = make("div", "lr-track", {
      role: "progressbar", "aria-label": `${name}: tokens`, "aria-valuemin": 0, "aria-valuemax": goal,
    });
    this.blocks = make("div", "lr-blocks");
    this.track.append(this.blocks, make("div", "lr-line", { "aria-hidden": "true" }));
    this.text = make("div", "lr-text", { tabindex: 0, role: "region", "aria-label": `Text of ${name}` });
    this.node.append(top, this.track, this.text);
  }

  draw(turns, place, ratio) {
    if (turns.length < this.count) this.clear();
    for (; this.count < turns.length; this.count += 1) this.add(turns, this.count);
    const [seconds, tokens] = turns[turns.length - 1] ?? [0, 0];
    this.track.setAttribute("aria-valuenow", tokens);
    this.numbers.textContent = turns.length
      ? `${tokens} tokens · ${seconds.toFixed(2)} s · ${(tokens / seconds).toFixed(1)} tokens/s · `
        + `${(tokens / turns.length).toFixed(2)} per round`
      : `0 tokens`;
    this.node.toggleAttribute("data-done", place >= 0);
    const rank = place < 0 ? "" : ["1st", "2nd", "3rd"][place];
    const told = ratio === undefined ? "" : Number(ratio.toFixed(2)) > 1 ? `${ratio.toFixed(2)} × as fast`
      : Number(ratio.toFixed(2)) < 1 ? `slower here: ${ratio.toFixed(2)} ×` : "no gain";
    this.result.textContent = [rank, told].filter(Boolean).join(" · ");
    this.text.scrollTop = this.text.scrollHeight;
  }

  add(turns, at) {
    const before = at ? turns[at - 1][1] : 0;
    const added = turns[at][1] - before;
    const block = make("i");
    block.style.width = `${(100 * added) / this.goal}%`;
    block.style.opacity = Math.min(1, 0.375 + 0.125 * added);
    this.blocks.append(block);
    this.text.append(make("span", at % 2 ? "lr-odd" : "lr-even", {}, turns[at][2]));
    while (this.text.textContent.length > SHOWN && this.text.childElementCount > 1) {
      this.text.firstElementChild.remove();
    }
  }

  clear() {
    this.count = 0;
    this.blocks.replaceChildren();
    this.text.replaceChildren();
  }
}

function end(lane) {
  return lane.turns.length ? lane.turns[lane.turns.length - 1][0] : 0;
}

export default { render };
