// The speed-up model in the browser: sliders, one curve, one sentence.
//
// Owns: the controls, and the formula of labkit/cost.py and labkit/whatif.py once more, because a
// page without a kernel must answer too (a test compares the two over a grid). Does not know: how
// axes, legends and measured points are drawn; they come as pictures from Python.
// Invariants: what was attached is detached by the function that `render` returns.

import { button, follow, make, press, say, toggle } from "./shared.js";

const CHANCE = "chance";
const FREE = "free";

/** Tokens that a round with n drafted nodes adds: labkit.cost.expected_tokens, or as measured. */
export function tokens(facts, state, n) {
  const way = facts.ways.find(({ name }) => name === state.drafting);
  if (way) return way.tokens[n];
  let sum = 0;
  for (let i = 0; i <= n; i++) sum += state.alpha ** i;
  return sum;
}

/** Plain steps that drafting n nodes takes. */
export function draft(facts, state, n) {
  const way = facts.ways.find(({ name }) => name === state.drafting);
  return (way ? way.steps[n] : n) * state.cost_ratio;
}

/** labkit.cost.along: between two points, and beyond the last along the last line. */
export function along(points, at) {
  if (points.length === 1 || at <= points[0][0]) return points[0][1];
  const found = points.findIndex(([place]) => place >= at);
  const right = found < 0 ? points.length - 1 : found;
  const [[x0, y0], [x1, y1]] = [points[right - 1], points[right]];
  return y0 + ((y1 - y0) * (at - x0)) / (x1 - x0);
}

const steps = (facts, width) => along(facts.forward, width) / facts.forward[0][1];

/** Plain steps that the target's forward over n drafted nodes takes. */
export function check(facts, state, n) {
  if (state.verify === FREE) return 1;
  return steps(facts, state.batch * (n + 1)) / steps(facts, state.batch);
}

/** labkit.cost.round_speedup */
export function speed(facts, state, n) {
  return tokens(facts, state, n) / (draft(facts, state, n) + check(facts, state, n));
}

const speeds = (facts, state) => Array.from({ length: facts.most + 1 }, (_, n) => speed(facts, state, n));

/** The number of drafted nodes with the highest speed; of equals the smallest. */
export function best(facts, state) {
  const all = speeds(facts, state);
  return all.indexOf(Math.max(...all));
}

/** The largest batch up to which some draft pays; 0 when none pays even alone. */
export function paysTo(facts, state) {
  let paying = 0;
  for (const batch of facts.batches) {
    if (Math.max(...speeds(facts, { ...state, batch })) <= 1) break;
    paying = batch;
  }
  return paying;
}

/** Two decimals as Python writes them: an exact half goes to the even neighbour. */
export function fixed(value) {
  const tie = Number.isInteger(value * 8) && !Number.isInteger(value * 4);
  if (!tie) return value.toFixed(2);
  const low = Math.floor(value * 100);
  return ((low % 2 ? low + 1 : low) / 100).toFixed(2);
}

/** labkit.cost.verdict */
export function verdict(ratio) {
  if (fixed(ratio) === "1.00") return "no gain";
  return `${fixed(ratio)}× (${ratio > 1 ? "faster" : "slower"})`;
}

const fill = (words, gaps) => words.replace(/{(\w+)}/g, (_, name) => gaps[name]);

/** labkit.viz.whatif.sentence */
export function sentence(facts, state) {
  const { words } = facts;
  const n = state.draft_length;
  const who = state.drafting === CHANCE
    ? fill(words.chance, { n, alpha: fixed(state.alpha) })
    : fill(words.way, { n, name: state.drafting });
  const top = best(facts, state);
  let told = fill(words.setting, { who, c: fixed(state.cost_ratio), batch: state.batch });
  told += !n ? words.nothing : fill(words.round, {
    tokens: fixed(tokens(facts, state, n)),
    draft: fixed(draft(facts, state, n)),
    check: fixed(check(facts, state, n)),
    verdict: verdict(speed(facts, state, n)),
  });
  told += !top ? words.none : fill(words.best, { best: top, verdict: verdict(speed(facts, state, top)) });
  if (state.verify === FREE) return told + words.free;
  const last = paysTo(facts, state);
  const key = !last ? "never" : last === facts.batches.at(-1) ? "all" : "to";
  const width = state.batch * (n + 1);
  const beyond = width > facts.forward.at(-1)[0] ? fill(words.beyond, { tokens: width }) : "";
  return told + fill(words[key], { batch: last }) + beyond;
}

/** What has to be drawn: the upper end of the axis, two curves, and where the points are. */
export function drawing(facts, state) {
  const free = { ...state, verify: FREE };
  const curves = { now: speeds(facts, state), free: speeds(facts, free) };
  const highest = Math.max(...curves.now, ...curves.free, ...facts.ran, 0);
  const top = facts.tops.find((one) => one >= highest) ?? facts.tops.at(-1);
  const at = { chosen: state.draft_length, best: best(facts, state) };
  const points = { chosen: [at.chosen, curves.now[at.chosen]], best: [at.best, curves.now[at.best]] };
  if (facts.forward.length) {
    const step = steps(facts, state.batch);
    points.step = [state.batch, step];
    points.check = [state.batch * (state.draft_length + 1), step * check(facts, state, state.draft_length)];
  }
  return { top, curves, points };
}

function render({ model, el }) {
  const view = new View(model, JSON.parse(model.get("facts")), el);
  return () => view.close();
}

const FIELDS = ["drafting", "alpha", "draft_length", "cost_ratio", "batch", "verify"];

class View {
  constructor(model, facts, el) {
    this.model = model;
    this.facts = facts;
    this.start = this.state;
    this.detach = new AbortController();
    this.root = make("div", "labkit labkit-widget labkit-whatif", { role: "group", "aria-label": facts.title });
    this.root.append(make("div", "labkit-title", {}, facts.title), make("div", "labkit-small", {}, facts.about));
    if (facts.ask) this.root.append(this.question());
    this.body = make("div", "labkit-whatif-body");
    this.sentence = make("p", "labkit-whatif-sentence", { "aria-live": "polite" });
    this.stage = make("div", "labkit-stage labkit-whatif-stage");
    this.body.append(this.controls(), this.sentence, this.stage);
    this.root.append(this.body);
    el.append(this.root);
    this.listen();
    this.fit();
  }

  get state() {
    return Object.fromEntries(FIELDS.map((name) => [name, this.model.get(name)]));
  }

  listen() {
    this.unfollow = follow(this.model, [...FIELDS, "answered"], () => this.show());
    this.sized = new ResizeObserver(() => this.fit());
    this.sized.observe(this.root);
  }

  /** Prediction first: the curve stays away until one of the answers is given. */
  question() {
    const { ask } = this.facts;
    this.ask = make("div", "labkit-whatif-ask", { role: "group", "aria-label": ask.question });
    const asked = make("p", "labkit-whatif-question", {}, ask.question);
    this.choices = ask.choices.map(([key, words]) => {
      const node = toggle(words);
      const moved = { answered: key, [ask.slider]: ask.end };
      node.addEventListener("click", () => this.tell(moved), { signal: this.detach.signal });
      return [key, node];
    });
    const row = make("div", "labkit-bar");
    row.append(...this.choices.map(([, node]) => node));
    this.reply = make("p", "labkit-whatif-reply", { "aria-live": "polite" });
    this.ask.append(asked, row, this.reply);
    return this.ask;
  }

  controls() {
    const { labels, ways, forward, batches, most, ratios } = this.facts;
    const box = make("div", "labkit-whatif-controls");
    this.inputs = {
      drafting: this.select("drafting", labels.drafting, [
        [CHANCE, labels.chance], ...ways.map(({ name }) => [name, fill(labels.way, { name })]),
      ]),
      alpha: this.slider("alpha", labels.alpha, Array.from({ length: 101 }, (_, i) => i / 100)),
      draft_length: this.slider("draft_length", labels.draft_length, Array.from({ length: most + 1 }, (_, i) => i)),
      cost_ratio: this.slider("cost_ratio", labels.cost_ratio, ratios),
      batch: this.slider("batch", labels.batch, batches),
      verify: this.select("verify", labels.verify, [
        ...(forward.length ? [["measured", labels.measured]] : []), [FREE, labels.free],
      ]),
    };
    box.append(...Object.values(this.inputs).map(({ label }) => label));
    const back = button(labels.back);
    back.addEventListener("click", () => this.tell(this.start), { signal: this.detach.signal });
    box.append(back);
    return box;
  }

  slider(name, words, values) {
    const label = make("label", "labkit-whatif-field");
    const node = make("input", "labkit-slider", {
      type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": words,
    });
    const said = make("output", "labkit-figures");
    node.addEventListener("input", () => this.tell({ [name]: values[Number(node.value)] }), { signal: this.detach.signal });
    label.append(make("span", "", {}, words), node, said); // the first control in a label is the one it names
    const nearest = (value) => values.reduce((near, v, i) =>
      (Math.abs(v - value) < Math.abs(values[near] - value) ? i : near), 0);
    const show = (value) => {
      node.value = nearest(value);
      said.textContent = Number.isInteger(values.at(-1)) && name !== "alpha" && name !== "cost_ratio"
        ? value : fixed(value);
      node.setAttribute("aria-valuetext", said.textContent);
    };
    return { label, node, show };
  }

  select(name, words, options) {
    const label = make("label", "labkit-whatif-field");
    const node = make("select", "labkit-menu", { "aria-label": words });
    for (const [value, told] of options) node.append(make("option", "", { value }, told));
    node.addEventListener("change", () => this.choose(name, node.value), { signal: this.detach.signal });
    label.append(make("span", "", {}, words), node);
    return { label, node, show: (value) => { node.value = value; } };
  }

  /** A measured way to draft brings the cost that was measured with it. */
  choose(name, value) {
    const way = name === "drafting" && this.facts.ways.find((one) => one.name === value);
    this.tell({ [name]: value, ...(way ? { cost_ratio: way.cost_ratio } : {}) });
  }

  tell(changes) {
    for (const [name, value] of Object.entries(changes)) this.model.set(name, value);
    this.show();
    this.model.save_changes();
  }

  fit() {
    const { boards } = this.facts;
    const room = this.stage.clientWidth || this.root.clientWidth;
    const found = boards.findIndex(({ width }) => width * 0.86 <= room);
    this.board = found < 0 ? boards.length - 1 : found;
    this.show();
  }

  show() {
    const { facts, state } = this;
    const answered = this.model.get("answered");
    for (const [name, { show }] of Object.entries(this.inputs)) show(state[name]);
    this.inputs.alpha.node.disabled = state.drafting !== CHANCE;
    this.inputs.batch.node.disabled = state.verify === FREE;
    const told = sentence(facts, state);
    say(this.sentence, told);
    if (this.ask) this.judge(answered);
    this.draw(drawing(facts, state), told, state.batch > 1);
  }

  judge(answered) {
    this.body.hidden = !answered;
    for (const [key, node] of this.choices) press(node, key === answered);
    say(this.reply, answered ? this.facts.ask.replies[answered] : this.facts.ask.first);
  }

  draw({ top, curves, points }, told, together) {
    const board = this.facts.boards[this.board];
    const frame = `${this.board} ${top}`;
    if (this.frame !== frame) {
      this.stage.innerHTML = board.frames[this.facts.tops.indexOf(top)];
      this.svg = this.stage.firstElementChild;
      this.svg.style.width = "100%";
      this.svg.style.maxWidth = `${Math.round(board.width * 1.25)}px`;
      this.frame = frame;
    }
    this.svg.querySelector("desc").textContent = told;
    const [area, below] = board.areas;
    for (const [key, values] of Object.entries(curves)) {
      const spots = values.map((y, n) => {
        const up = area.up - (area.up * Math.min(y, top)) / top;
        return `${(n / this.facts.most * area.across).toFixed(1)} ${up.toFixed(1)}`;
      });
      this.find(key).setAttribute("d", `M${spots.join("L")}`);
    }
    for (const [key, [x, y]] of Object.entries(points)) {
      const isSpeed = key === "chosen" || key === "best";
      const [right, up] = isSpeed
        ? [area.left + (x / this.facts.most) * area.across, area.top + area.up * (1 - Math.min(y, top) / top)]
        : [below.left + (Math.log2(x) / this.facts.doublings) * below.across,
          below.top + below.up * (1 - Math.min(Math.max(0, Math.log2(y)), this.facts.highest) / this.facts.highest)];
      const shape = this.find(key);
      shape.parentElement.setAttribute("transform", `translate(${right.toFixed(1)} ${up.toFixed(1)})`);
      const name = shape.querySelector("title").textContent.split(":")[0];
      shape.querySelector("title").textContent = isSpeed
        ? `${name}: ${x} drafted, ${verdict(y)}` : `${name}: ${x} tokens, ${fixed(y)} steps`;
    }
    // runs were measured with one sequence
    for (const shape of this.svg.querySelectorAll('[data-key^="ran"]')) {
      shape.setAttribute("visibility", together ? "hidden" : "visible");
    }
  }

  find(key) {
    return this.svg.querySelector(`[data-key="${key}"]`);
  }

  close() {
    this.detach.abort();
    this.sized.disconnect();
    this.unfollow();
    this.root.remove();
  }
}

export default { render };
