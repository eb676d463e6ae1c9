// Fragmentation: what is free over time, and at the moment the free runs and what pins each.

import { LEFT, RIGHT, axes, line, mark, sized } from "./axes";
import { inks } from "./colours";
import { listen } from "./gestures";
import { levels } from "./levels";
import type { Growth } from "./facts";
import { NEVER } from "./run";
import { freeRuns, segmentsAt } from "./segments";
import type { Side, State } from "./state";
import { element, made } from "./state";
import { bytes, number, plural, stackName } from "./words";

const ROWS = 60;

export class Fragmentation {
  private readonly canvas = element<HTMLCanvasElement>("free");
  private isAsked = false;
  private wasDrawn = false;
  private turn = 0;

  constructor(private readonly state: State) {
    const ask = () => this.ask();
    state.on(["view", "theme", "moment", "side"], ask);
    state.on(["moment", "side"], () => void this.fill());
    new ResizeObserver(ask).observe(this.canvas);
    // What is not on the screen is drawn when it comes there.
    new IntersectionObserver(ask).observe(this.canvas);
    const plot = {
      canvas: this.canvas,
      get side(): Side {
        return state.side;
      },
      left: () => LEFT,
      width: () => this.canvas.clientWidth - LEFT - RIGHT,
      hover: () => undefined,
      leave: () => undefined,
      click: (x: number) => {
        const { from, to } = state.side.view;
        const width = this.canvas.clientWidth - LEFT - RIGHT;
        state.setMoment(state.side, Math.floor(from + ((x - LEFT) / width) * (to - from)));
      },
    };
    // The side may change, so that each gesture asks for it.
    listen(state, plot);
  }

  ask(): void {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      this.draw();
    });
  }

  private draw(): void {
    const box = this.canvas.getBoundingClientRect();
    const width = Math.round(this.canvas.clientWidth - LEFT - RIGHT);
    const isSeen = box.bottom >= 0 && box.top <= innerHeight;
    // It is drawn once all the same, for whoever prints the page without having looked at it.
    if (width < 20 || (this.wasDrawn && !isSeen)) return;
    this.wasDrawn = true;
    const context = sized(this.canvas);
    const { run, view, moment } = this.state.side;
    const values = levels(run, view, width, () => this.ask());
    const top = Math.max(1, values[3].reduce((most, value) => Math.max(most, value), 0)) * 1.12;
    const frame = axes(context, view, top);
    const colours = inks();
    context.fillStyle = colours.free;
    context.globalAlpha = 0.55;
    values[3].forEach((value, column) => {
      const y = frame.y(value);
      context.fillRect(LEFT + column, y, 1, frame.y(0) - y);
    });
    context.globalAlpha = 1;
    line(context, frame, values[3], colours.faint, 1.2);
    line(context, frame, values[4], colours.reserved, 1.6);
    context.fillStyle = colours.warn;
    for (const [event, , , free] of run.facts.growths) {
      if (event < view.from || event > view.to || free === 0) continue;
      context.beginPath();
      context.arc(frame.x(event), frame.y(Math.min(free, top)), 3, 0, 2 * Math.PI);
      context.fill();
    }
    mark(context, frame, moment, "", colours.accent, []);
  }

  /** The request that the moment is looked at for: the next that found no free run, or else the last. */
  private request(): { growth: Growth; isNext: boolean } | undefined {
    const { run, moment } = this.state.side;
    const all = [...run.facts.growths, ...run.facts.failures].sort(([one], [other]) => one - other);
    const next = all.find(([event]) => event >= moment);
    const growth = next ?? all[all.length - 1];
    return growth && { growth, isNext: next !== undefined };
  }

  async fill(): Promise<void> {
    const turn = ++this.turn;
    const { run, moment } = this.state.side;
    const { segments } = await segmentsAt(run, moment);
    if (turn !== this.turn) return;
    const runs = freeRuns(segments);
    const found = this.request();
    const asked = found ? found.growth[2] : 0;
    const small = runs.filter(({ size }) => size < asked);
    const foreign = runs.filter(({ size, segment }) => size >= asked && segment.lane !== found?.growth[1]);
    const sum = (list: typeof runs) => list.reduce((sum, { size }) => sum + size, 0);
    element("free-sums").textContent = `At event ${number(moment)}: ${bytes(sum(runs))} free in ${plural(runs.length, "run")}, the largest ${bytes(runs[0]?.size ?? 0)}.`;
    if (found) {
      const { growth, isNext } = found;
      const lane = run.facts.lanes[growth[1]];
      const which = isNext ? "The next request that no free run could serve" : "The last request that no free run could serve";
      element("free-request").textContent = `${which} came at event ${number(growth[0])}: ${bytes(asked)} on stream ${lane.stream}, ${lane.pool} pool. For it ${bytes(sum(small))} of what is free here lies in ${plural(small.length, "run")} that ${small.length === 1 ? "is" : "are"} too small, and ${bytes(sum(foreign))} is large enough but of another stream or pool.`;
    } else {
      element("free-request").textContent = "Every request was served by a free run.";
    }
    this.fillRuns(runs, asked, found?.growth[1] ?? -1);
    this.fillPins(runs.filter(({ size }) => size < asked || asked === 0));
  }

  /** Runs that are alike in all that the table says are one line of it. */
  private fillRuns(runs: ReturnType<typeof freeRuns>, asked: number, lane: number): void {
    const { facts } = this.state.side.run;
    const groups = new Map<string, { count: number; size: number; cells: string[] }>();
    for (const { segment, size, pins } of runs) {
      const { stream, pool } = facts.lanes[segment.lane];
      const oldest = [...pins].sort((one, other) => one.begin - other.begin);
      const verdict = pins.length === 0 ? "nothing: the whole segment is free" : oldest.map((pin) => bytes(pin.size)).join(" and ");
      const since = oldest.map((pin) => number(pin.begin)).join(", ");
      const where = segment.lane === lane ? "" : "of another stream or pool";
      const cells = [bytes(size), size < asked ? "too small" : where, String(stream), pool, bytes(segment.size), verdict, since];
      const key = cells.join("|");
      const group = groups.get(key) ?? { count: 0, size, cells };
      group.count += 1;
      groups.set(key, group);
    }
    const table = element("free-runs");
    const head = made("tr");
    for (const word of ["runs", "size", "", "stream", "pool", "of a segment of", "pinned by", "since event"]) head.append(made("th", "", word));
    const rows = [...groups.values()].slice(0, ROWS).map(({ count, cells }) => {
      const row = made("tr");
      row.append(made("td", "", number(count)));
      cells.forEach((cell, at) => row.append(made("td", at === 1 ? "small" : "", cell)));
      return row;
    });
    const more = groups.size > ROWS ? `, ${ROWS} of ${number(groups.size)} lines` : "";
    table.replaceChildren(made("caption", "", `${plural(runs.length, "free run")}, the largest first${more}`), head, ...rows);
  }

  /** The active blocks beside runs that are too small, oldest first. */
  private fillPins(runs: ReturnType<typeof freeRuns>): void {
    const { facts } = this.state.side.run;
    const pinned = new Map<number, { free: number; band: (typeof runs)[number]["pins"][number] }>();
    for (const { pins, size } of runs) {
      for (const band of pins) {
        const known = pinned.get(band.begin) ?? { free: 0, band };
        known.free += size;
        pinned.set(band.begin, known);
      }
    }
    const all = [...pinned.values()].sort((one, other) => one.band.begin - other.band.begin);
    const table = element("pins");
    const head = made("tr");
    for (const word of ["since event", "until event", "size", "free beside it", "stream", "pool", "category", "stack"]) head.append(made("th", "", word));
    const rows = all.slice(0, ROWS).map(({ free, band }) => {
      const row = made("tr");
      const { stream, pool } = facts.lanes[band.lane];
      const until = band.freed === NEVER ? "the end" : number(band.freed);
      const cells = [number(band.begin), until, bytes(band.size), bytes(free), String(stream), pool, facts.kinds[band.kind], stackName(facts, band.stack)];
      cells.forEach((cell, at) => row.append(made("td", at === 7 ? "code" : "", cell)));
      return row;
    });
    const more = all.length > ROWS ? ` (the oldest ${ROWS} of ${number(all.length)})` : "";
    table.replaceChildren(made("caption", "", `Blocks that pin them, oldest first${more}`), head, ...rows);
  }
}
