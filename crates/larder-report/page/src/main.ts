// The page: puts the views together.

import { forget } from "./colours";
import { readFacts } from "./facts";
import { Fragmentation } from "./fragmentation";
import { Holders } from "./holders";
import { SegmentMap } from "./map";
import { Run } from "./run";
import { showSettings } from "./settings";
import type { ColourBy, Side } from "./state";
import { State, element, made } from "./state";
import { Timeline, showChosen, timelineTable } from "./timeline";
import { showVerdicts } from "./verdict";
import { bytes, change, number, plural } from "./words";

function heading(state: State): void {
  const place = element("files");
  state.sides.forEach(({ run: { facts } }, index) => {
    const line = made("p", "file-line");
    if (state.sides.length > 1) {
      const button = made("button", "side", facts.name);
      const show = () => button.setAttribute("aria-pressed", String(state.current === index));
      button.addEventListener("click", () => state.choose(index));
      state.on(["side"], show);
      show();
      line.append(button, " ");
    }
    const said = `policy ${facts.policy}, ${facts.settings}, a simulated GPU with ${facts.memory}; ${plural(facts.events, "event")}, ${plural(facts.allocations, "allocation")}`;
    line.append(made("span", "faint", said));
    place.append(line);
    if (facts.first_oom) {
      const box = made("details", "oom");
      box.append(made("summary", "", `${plural(facts.ooms, "request")} failed: out of memory. What the first one said`));
      box.append(made("p", "", facts.first_oom));
      place.append(box);
    }
  });
  const [{ run: { facts } }] = state.sides;
  if (facts.is_recording && !facts.is_stock) {
    const words = `This is how Larder's policy ${facts.policy} runs the program. For what stock PyTorch does, make the page with --policy torch-2.11.`;
    place.append(made("p", "faint small-print", words));
  }
}

/** The figures of the run, or of both and what lies between them. */
function figures(state: State): void {
  const place = element("figures");
  const [first, second] = state.sides.map(({ run }) => run.facts);
  const all: [string, string, (facts: typeof first) => number, (value: number) => string][] = [
    ["peak allocated", "allocated", (facts) => facts.peaks.allocated.bytes, bytes],
    ["peak active", "active", (facts) => facts.peaks.active.bytes, bytes],
    ["peak reserved", "reserved", (facts) => facts.peaks.reserved.bytes, bytes],
    ["overhead", "overhead", (facts) => facts.overhead, (value) => value.toFixed(3)],
    ["retries", "retries", (facts) => facts.retries, number],
    ["out of memory", "ooms", (facts) => facts.ooms, number],
  ];
  for (const [word, id, value, text] of all) {
    const box = made("div", `figure ${id}`);
    box.id = `figure-${id}`;
    box.dataset.value = String(value(first));
    box.append(made("span", "what", word), made("span", "how", text(value(first))));
    if (second) {
      box.dataset.other = String(value(second));
      const difference = value(second) - value(first);
      const isBytes = text === bytes;
      const said = isBytes ? change(difference) : (difference > 0 ? "+" : "") + text(difference);
      box.append(made("span", "other", text(value(second))));
      box.append(made("span", difference > 0 ? "more" : "less", difference === 0 ? "the same" : said));
    }
    place.append(box);
  }
  if (second) {
    const words = `upper: ${first.name}; lower: ${second.name}, and what it has more or less`;
    place.after(made("p", "faint small-print", words));
  }
}

function theme(state: State): void {
  const button = element("theme");
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefers.matches);
  const show = () => {
    button.textContent = isDark() ? "light" : "dark";
    button.setAttribute("aria-label", `switch to the ${isDark() ? "light" : "dark"} theme`);
    forget();
    state.tell("theme");
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  prefers.addEventListener("change", show);
  let before: string | undefined;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    show();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    show();
  });
  show();
}

function controls(state: State): void {
  const colour = element<HTMLSelectElement>("colour");
  colour.value = state.colourBy;
  colour.addEventListener("change", () => {
    state.colourBy = colour.value as ColourBy;
    state.tell("colour");
  });
  element("whole").addEventListener("click", () => {
    for (const side of state.sides) state.setView(side, 0, side.run.facts.events);
  });
  element("near-peak").addEventListener("click", () => {
    for (const side of state.sides) {
      const { events, peaks } = side.run.facts;
      const width = Math.max(64, events / 20);
      state.setView(side, peaks.allocated.event - width / 2, peaks.allocated.event + width / 2);
    }
  });
  const zoomBy = (factor: number) => {
    for (const side of state.sides) {
      const { from, to } = side.view;
      const middle = (from + to) / 2;
      state.setView(side, middle - ((to - from) / 2) * factor, middle + ((to - from) / 2) * factor);
    }
  };
  element("zoom-in").addEventListener("click", () => zoomBy(0.5));
  element("zoom-out").addEventListener("click", () => zoomBy(2));
  const shown = element("window");
  const show = () => {
    const { from, to } = state.side.view;
    shown.textContent = `events ${number(Math.floor(from))} to ${number(Math.ceil(to))}`;
  };
  state.on(["view", "side"], show);
  show();
}

async function start(): Promise<void> {
  const { sides: all, version } = readFacts();
  const runs = all.map((facts, index) => new Run(facts, "ab"[index]));
  await Promise.all(runs.map((run) => run.start()));
  const sides: Side[] = runs.map((run) => ({
    run,
    view: { from: 0, to: Math.max(8, run.facts.events) },
    moment: run.facts.failures[0]?.[0] ?? run.facts.peaks.allocated.event,
  }));
  const state = new State(sides);
  heading(state);
  showVerdicts(state);
  figures(state);
  theme(state);
  controls(state);
  element("made-by").textContent = `larder ${version}`;
  const timelines = sides.map((side) => new Timeline(state, side, element("timelines")));
  showChosen(state);
  const first = timelines.map((timeline) => new Promise<void>((resolve) => (timeline.onFirst = resolve)));
  timelines.forEach((timeline) => timeline.ask());
  await Promise.all(first);
  // The picture is on the screen when the frame after its own begins.
  requestAnimationFrame(() => {
    performance.mark("first-picture");
    document.documentElement.dataset.firstPicture = String(Math.round(performance.now()));
    void rest(state);
  });
}

/** All that can wait until there is something to see. */
async function rest(state: State): Promise<void> {
  const map = new SegmentMap(state);
  const holders = new Holders(state);
  const fragmentation = new Fragmentation(state);
  showSettings(state);
  const table = element("timeline-table");
  const show = () => table.replaceChildren(timelineTable(state.side));
  state.on(["side"], show);
  show();
  fragmentation.ask();
  await Promise.all([map.show(), holders.show(), fragmentation.fill()]);
  document.documentElement.dataset.ready = "1";
}

void start();
