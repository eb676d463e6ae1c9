// Memory over time: the bands, the lines above them, the peak and the moment.

import { BOTTOM, LEFT, RIGHT, TOP, axes, line, mark, sized } from "./axes";
import { bandColours, colourOf, inks } from "./colours";
import { panel, tip } from "./detail";
import { listen } from "./gestures";
import type { Layout } from "./layout";
import { bandAt, bandNumber, layOut, stacked } from "./layout";
import { levels } from "./levels";
import type { Side, State } from "./state";
import { element, made } from "./state";
import { bytes, number } from "./words";

/** How long after the last move the picture is laid out anew. */
const SETTLES_MS = 120;

/** What the picture shows: from which event on, how many events a column is wide, and up to how many bytes. */
interface Painted {
  from: number;
  each: number;
  columns: number;
  height: number;
  top: number;
}

export class Timeline {
  readonly canvas = document.createElement("canvas");
  private readonly over = document.createElement("canvas");
  private readonly strip = document.createElement("canvas");
  private readonly tip = made("div", "tip");
  private layout?: Layout;
  private top = 1;
  private hovered = -1;
  private isAsked = false;
  private picture?: ImageData;
  private painted?: Painted;
  private settling = 0;
  private readonly shadow = document.createElement("canvas");
  /** The whole run for the strip, which changes with its width alone. */
  private whole?: { columns: number; values: Float64Array[] };
  /** Told once, when the bands of the first picture are there. */
  onFirst?: () => void;

  constructor(private readonly state: State, private readonly side: Side, place: HTMLElement) {
    const { facts } = side.run;
    if (state.sides.length > 1) place.append(made("h3", "file", facts.name));
    const box = made("div", "plot");
    this.canvas.className = "timeline";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "zoomable chart");
    this.canvas.setAttribute("aria-label", `Memory over ${number(facts.events)} events of ${facts.name}. Arrow left and right pan, plus and minus zoom, 0 shows all, P goes to the peak, comma and full stop step by one event. The table below says the same.`);
    this.over.className = "over";
    this.strip.className = "strip";
    this.strip.setAttribute("aria-hidden", "true");
    this.tip.hidden = true;
    box.append(this.canvas, this.over, this.tip);
    place.append(box, this.strip);
    const redraw = () => {
      this.painted = undefined;
      this.ask();
    };
    state.on(["view"], () => this.ask());
    state.on(["theme", "colour"], redraw);
    state.on(["moment", "chosen", "side"], () => this.drawOver());
    new ResizeObserver(redraw).observe(this.canvas);
    listen(state, {
      canvas: this.canvas,
      side,
      left: () => LEFT,
      width: () => this.canvas.clientWidth - LEFT - RIGHT,
      hover: (x, y) => this.hover(x, y),
      leave: () => this.leave(),
      click: (x, y) => this.click(x, y),
    });
    this.listenToStrip();
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
    const context = sized(this.canvas);
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    const height = this.canvas.clientHeight - TOP - BOTTOM;
    if (width < 20 || height < 20) return;
    const columns = Math.round(width);
    const rows = Math.round(height);
    const values = this.move(columns, rows) ?? this.paintAnew(columns, rows);
    this.putDown(context, columns, rows);
    const frame = axes(context, this.side.view, this.top);
    const colours = inks();
    line(context, frame, values[2], colours.reserved, 2);
    line(context, frame, values[1], colours.active, 1.2);
    line(context, frame, values[0], colours.allocated, 1.6);
    this.drawOver();
    this.drawStrip();
    if (this.layout!.isWhole && this.onFirst) {
      this.onFirst();
      this.onFirst = undefined;
    }
  }

  /** Lays out and paints the whole window. Gives the levels. */
  private paintAnew(columns: number, height: number): Float64Array[] {
    const { run, view } = this.side;
    const values = levels(run, view, columns, () => this.redo());
    this.top = Math.max(1, values[2].reduce((most, value) => Math.max(most, value), 0)) * 1.08;
    this.layout = layOut(run, view, columns, () => this.redo());
    if (this.picture?.width !== columns || this.picture.height !== height) {
      this.picture = new ImageData(columns, height);
    }
    this.paint(this.layout, 0, values[1]);
    const each = (view.to - view.from) / columns;
    this.painted = { from: view.from, each, columns, height, top: this.top };
    return values;
  }

  private redo(): void {
    this.painted = undefined;
    this.ask();
  }

  /**
   * Where the window moved and nothing else changed, the picture moves with it by whole columns, and only what came
   * into sight is painted. A little later everything is laid out anew. Gives the levels; none if it has to be now.
   */
  private move(columns: number, height: number): Float64Array[] | undefined {
    const { painted, picture } = this;
    const { run, view } = this.side;
    const each = (view.to - view.from) / columns;
    if (!painted || !picture || painted.columns !== columns || painted.height !== height) return undefined;
    if (Math.abs(painted.each - each) > each * 1e-6) return undefined;
    const shift = Math.round((view.from - painted.from) / each);
    const count = Math.abs(shift);
    if (count > columns / 2) return undefined;
    const pixels = new Uint32Array(picture.data.buffer);
    // What goes over the edge of a row lands where it is painted over.
    if (shift > 0) pixels.copyWithin(0, shift);
    if (shift < 0) pixels.copyWithin(-shift, 0);
    painted.from += shift * each;
    const values = levels(run, view, columns, () => this.redo());
    if (count > 0) {
      const at = shift > 0 ? columns - shift : 0;
      const from = painted.from + at * each;
      const strip = layOut(run, { from, to: from + count * each }, count, () => this.redo());
      this.paint(strip, at, values[1].subarray(at, at + count));
    }
    clearTimeout(this.settling);
    this.settling = window.setTimeout(() => this.redo(), SETTLES_MS);
    return values;
  }

  /** Paints the bands of a layout as pixels, one column after the other, from this column of the picture on. */
  private paint(layout: Layout, at: number, active: Float64Array): void {
    const { width, height } = this.picture!;
    const pixels = new Uint32Array(this.picture!.data.buffer);
    for (let row = 0; row < height; row++) pixels.fill(0, row * width + at, row * width + at + layout.columns);
    const { plain, edge, waiting } = bandColours();
    const colour = colourOf(this.side.run.facts, this.state.colourBy);
    const scale = height / this.top;
    const { from, to } = layout.view;
    const each = (to - from) / layout.columns;
    const heights = new Float64Array(layout.columns);
    for (let band = 0; band < layout.count; band++) {
      const piece = layout.pieces[band];
      const index = layout.indexes[band];
      const size = piece.size[index] * scale;
      const hue = colour(piece, index);
      const freedColumn = (piece.freed[index] - from) / each - 0.5;
      const [fill, border, wait] = [plain[hue], edge[hue], waiting[hue]];
      const last = layout.last[band];
      for (let column = layout.first[band]; column < last; column++) {
        const low = heights[column];
        const high = low + size;
        heights[column] = high;
        const bottom = height - Math.floor(low);
        const above = Math.max(0, height - Math.floor(high));
        if (above >= bottom) continue;
        const ink = column < freedColumn ? fill : wait;
        const end = above * width + at + column;
        for (let pixel = (bottom - 1) * width + at + column; pixel >= end; pixel -= width) pixels[pixel] = ink;
        if (bottom - above >= 2) pixels[end] = border;
      }
    }
    const short = inks().isDark ? 0xff4a443c : 0xffe6e0da;
    for (let column = 0; column < layout.columns; column++) {
      const bottom = height - Math.floor(heights[column]);
      const above = Math.max(0, height - Math.floor(active[column] * scale));
      for (let row = bottom - 1; row >= above; row--) pixels[row * width + at + column] = short;
    }
  }

  /** A picture put down takes no notice of the screen's ratio, so it goes through a canvas of its own. */
  private putDown(context: CanvasRenderingContext2D, columns: number, height: number): void {
    const { shadow } = this;
    if (shadow.width !== columns || shadow.height !== height) {
      shadow.width = columns;
      shadow.height = height;
    }
    shadow.getContext("2d")!.putImageData(this.picture!, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(shadow, LEFT, TOP, columns, height);
  }

  /** What changes without the picture changing. */
  private drawOver(): void {
    const context = sized(this.over);
    const layout = this.layout;
    if (!layout) return;
    const { run, view } = this.side;
    const width = this.over.clientWidth - LEFT - RIGHT;
    const height = this.over.clientHeight - TOP - BOTTOM;
    const frame = {
      width,
      height,
      x: (event: number) => LEFT + ((event - view.from) / (view.to - view.from)) * width,
      y: (size: number) => TOP + height * (1 - size / this.top),
    };
    const colours = inks();
    const chosen = this.side.chosen;
    const begins = (band: number) => layout.pieces[band].begin[layout.indexes[band]];
    this.outline(context, frame, (band) => begins(band) === chosen?.begin, colours.ink, chosen !== undefined);
    this.outline(context, frame, (band) => band === this.hovered, colours.accent, this.hovered >= 0);
    const { allocated, reserved } = run.facts.peaks;
    mark(context, frame, reserved.event, "", colours.reserved, [2, 3]);
    mark(context, frame, allocated.event, `peak ${bytes(allocated.bytes)}`, colours.allocated, [5, 3]);
    for (const [event] of run.facts.failures.slice(0, 50)) {
      mark(context, frame, event, "out of memory", colours.warn, [], 1);
    }
    mark(context, frame, this.side.moment, "", colours.accent, []);
  }

  private outline(
    context: CanvasRenderingContext2D,
    frame: { width: number; y(size: number): number },
    is: (band: number) => boolean,
    colour: string,
    isWanted: boolean,
  ): void {
    const layout = this.layout!;
    if (!isWanted) return;
    let target = -1;
    for (let band = 0; band < layout.count && target < 0; band++) if (is(band)) target = band;
    if (target < 0) return;
    const each = frame.width / layout.columns;
    // The layout may be that of a moment ago.
    const { from, to } = layout.view;
    const left = LEFT - ((this.side.view.from - from) / (to - from)) * frame.width;
    context.fillStyle = colour;
    context.globalAlpha = 0.75;
    stacked(layout, (band, column, low, high) => {
      if (band > target) return true;
      if (band < target) return;
      const bottom = frame.y(low);
      const above = frame.y(high);
      const x = left + column * each;
      if (x < LEFT || x >= LEFT + frame.width) return;
      context.fillRect(x, above, each + 0.5, Math.max(1.5, bottom - above));
    });
    context.globalAlpha = 1;
  }

  private find(x: number, y: number): number {
    const layout = this.layout;
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    const height = this.canvas.clientHeight - TOP - BOTTOM;
    if (!layout || x < LEFT || x >= LEFT + width || y < TOP || y > TOP + height) return -1;
    // The layout may be that of a moment ago, a little to the side of what is shown.
    const { from, to } = this.side.view;
    const event = from + ((x - LEFT) / width) * (to - from);
    const share = (event - layout.view.from) / (layout.view.to - layout.view.from);
    if (share < 0 || share > 1) return -1;
    const column = Math.min(layout.columns - 1, Math.floor(share * layout.columns));
    return bandAt(layout, column, (1 - (y - TOP) / height) * this.top);
  }

  private hover(x: number, y: number): void {
    const found = this.find(x, y);
    if (found !== this.hovered) {
      this.hovered = found;
      this.drawOver();
    }
    this.canvas.style.cursor = found >= 0 ? "pointer" : "";
    if (found < 0) {
      this.tip.hidden = true;
      return;
    }
    this.tip.replaceChildren(tip(this.side.run.facts, bandNumber(this.layout!, found)));
    this.tip.hidden = false;
    const room = this.canvas.clientWidth;
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room - wide - 4, x + 14))}px`;
    this.tip.style.top = `${y + 18}px`;
  }

  private leave(): void {
    this.tip.hidden = true;
    if (this.hovered < 0) return;
    this.hovered = -1;
    this.drawOver();
  }

  private click(x: number, y: number): void {
    const { state, side } = this;
    state.choose(state.sides.indexOf(side));
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    const { from, to } = side.view;
    const found = this.find(x, y);
    side.chosen = found >= 0 ? bandNumber(this.layout!, found) : undefined;
    state.tell("chosen");
    const pointed = Math.floor(from + ((x - LEFT) / width) * (to - from));
    // A pixel may be many events wide; the moment is one at which the band is there.
    const { begin, end } = side.chosen ?? { begin: 0, end: Infinity };
    state.setMoment(side, Math.max(begin, Math.min(end - 1, pointed)));
    this.canvas.focus({ preventScroll: true });
  }

  /** The whole run in small, with the window on it. */
  private drawStrip(): void {
    const context = sized(this.strip);
    const { run, view } = this.side;
    const width = this.strip.clientWidth - LEFT - RIGHT;
    const height = this.strip.clientHeight;
    if (width < 20) return;
    const whole = { from: 0, to: run.facts.events };
    const columns = Math.round(width);
    if (this.whole?.columns !== columns) {
      this.whole = { columns, values: levels(run, whole, columns, () => undefined) };
    }
    const { values } = this.whole;
    const top = Math.max(1, run.facts.peaks.reserved.bytes);
    const colours = inks();
    for (const [which, colour] of [[2, colours.grid], [1, colours.faint]] as const) {
      context.fillStyle = colour;
      values[which].forEach((value, column) => {
        const high = (value / top) * (height - 2);
        context.fillRect(LEFT + column, height - high, 1, high);
      });
    }
    const x = (event: number) => LEFT + (event / whole.to) * width;
    context.fillStyle = colours.paper;
    context.globalAlpha = 0.65;
    context.fillRect(LEFT, 0, x(view.from) - LEFT, height);
    context.fillRect(x(view.to), 0, LEFT + width - x(view.to), height);
    context.globalAlpha = 1;
    context.strokeStyle = colours.accent;
    context.strokeRect(x(view.from) + 0.5, 0.5, Math.max(2, x(view.to) - x(view.from) - 1), height - 1);
  }

  private listenToStrip(): void {
    const { strip, side, state } = this;
    const go = (event: PointerEvent) => {
      const box = strip.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      const width = side.view.to - side.view.from;
      const middle = share * side.run.facts.events;
      state.setView(side, middle - width / 2, middle + width / 2);
    };
    strip.addEventListener("pointerdown", (event) => {
      strip.setPointerCapture(event.pointerId);
      go(event);
    });
    strip.addEventListener("pointermove", (event) => {
      if (strip.hasPointerCapture(event.pointerId)) go(event);
    });
  }
}

/** The panel beside the chart, which keeps what was clicked. */
export function showChosen(state: State): void {
  const place = element("chosen");
  const show = () => {
    const { chosen, run } = state.side;
    if (!chosen) {
      place.replaceChildren(made("p", "faint", "Point at a band to see what it is; click to keep it here. Scroll to zoom, drag to move."));
      return;
    }
    place.replaceChildren(made("h3", "", "Allocation"), panel(run.facts, chosen));
  };
  state.on(["chosen", "side"], show);
  show();
}

/** The chart as a table, for those who cannot see it. */
export function timelineTable(side: Side): HTMLElement {
  const { run } = side;
  const table = made("table");
  const head = made("tr");
  for (const word of ["event", "allocated", "active", "reserved"]) head.append(made("th", "", word));
  table.append(made("caption", "", `The most of each in every fortieth of the run of ${run.facts.name}`), head);
  const view = { from: 0, to: run.facts.events };
  const parts = Math.min(40, run.facts.events);
  const values = levels(run, view, parts, () => undefined);
  for (let part = 0; part < parts; part++) {
    const row = made("tr");
    row.append(made("td", "", number(Math.floor((part * view.to) / parts))));
    for (const which of [0, 1, 2]) row.append(made("td", "", bytes(values[which][part])));
    table.append(row);
  }
  return table;
}
