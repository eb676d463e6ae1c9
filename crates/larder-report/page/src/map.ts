// The map: the segments at the moment, drawn to scale, by stream and pool.

import { sized } from "./axes";
import { inks } from "./colours";
import { panel } from "./detail";
import type { Part, Segment } from "./segments";
import { segmentsAt } from "./segments";
import type { State } from "./state";
import { element, made } from "./state";
import { address, bytes, number, plural } from "./words";

const ROW = 20;
const GAP = 4;
const HEADING = 24;
const PATTERN = 6;

interface Drawn {
  x: number;
  y: number;
  width: number;
  part: Part;
  segment: Segment;
}

export class SegmentMap {
  private readonly canvas = element<HTMLCanvasElement>("map");
  private readonly tip = element("map-tip");
  private drawn: Drawn[] = [];
  private segments: Segment[] = [];
  private elsewhere = 0;
  private turn = 0;
  private chosen?: number;

  constructor(private readonly state: State) {
    state.on(["moment", "side"], () => void this.show());
    state.on(["theme"], () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("click", (event) => this.click(event));
    element("earlier").addEventListener("click", () => this.step(-1));
    element("later").addEventListener("click", () => this.step(1));
    const field = element<HTMLInputElement>("moment");
    field.addEventListener("change", () => state.setMoment(state.side, Number(field.value) || 0));
    const slider = element<HTMLInputElement>("moment-slider");
    slider.addEventListener("input", () => state.setMoment(state.side, Number(slider.value)));
    for (const button of document.querySelectorAll<HTMLButtonElement>("button[data-goto]")) {
      button.addEventListener("click", () => this.go(button.dataset.goto!));
    }
  }

  private step(by: number): void {
    this.state.setMoment(this.state.side, this.state.side.moment + by);
  }

  private go(where: string): void {
    const { facts } = this.state.side.run;
    const places: Record<string, number> = {
      allocated: facts.peaks.allocated.event,
      reserved: facts.peaks.reserved.event,
      failure: facts.failures[0]?.[0] ?? facts.events - 1,
      end: facts.events - 1,
    };
    this.state.setMoment(this.state.side, places[where]);
  }

  async show(): Promise<void> {
    const { side } = this.state;
    const { moment, run } = side;
    const turn = ++this.turn;
    const field = element<HTMLInputElement>("moment");
    field.value = String(moment);
    field.max = String(run.facts.events - 1);
    const slider = element<HTMLInputElement>("moment-slider");
    slider.max = String(run.facts.events - 1);
    slider.value = String(moment);
    element("goto-failure").hidden = run.facts.failures.length === 0;
    const [{ segments, elsewhere }, event] = await Promise.all([segmentsAt(run, moment), run.eventAt(moment)]);
    // Who steps fast sees the last step alone.
    if (turn !== this.turn) return;
    this.segments = segments;
    this.elsewhere = elsewhere.reduce((sum, band) => sum + band.size, 0);
    const about = event.band ?? event.stretch;
    const lane = about ? run.facts.lanes[about.lane] : undefined;
    const what = about
      ? `${event.what}: ${bytes(about.size)} on stream ${lane!.stream}, ${lane!.pool} pool, at ${address(about.addr)}`
      : event.what;
    element("event").textContent = `Event ${number(moment)}: ${what}`;
    this.draw();
    this.fillTable();
  }

  private lanes(): [string, Segment[]][] {
    const { lanes } = this.state.side.run.facts;
    const groups = new Map<string, Segment[]>();
    for (const segment of this.segments) {
      const { stream, pool } = lanes[segment.lane];
      const name = `stream ${stream}, ${pool} pool`;
      groups.set(name, [...(groups.get(name) ?? []), segment]);
    }
    return [...groups].sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true }));
  }

  /** Places the segments in rows of equal scale, and draws them. */
  private draw(): void {
    const width = this.canvas.clientWidth;
    if (width < 20) return;
    const total = this.segments.reduce((sum, segment) => sum + segment.size, 0);
    const largest = this.segments.reduce((most, segment) => Math.max(most, segment.size), 0);
    const perRow = Math.max(largest, total / 28, 1);
    const scale = width / perRow;
    this.drawn = [];
    const headings: { y: number; text: string }[] = [];
    let y = 0;
    for (const [name, segments] of this.lanes()) {
      const sum = (what: "live" | "free" | "waiting") => segments.reduce((sum, one) => sum + one[what], 0);
      const held = sum("live") + sum("free") + sum("waiting");
      const waiting = sum("waiting") ? `, ${bytes(sum("waiting"))} waiting` : "";
      headings.push({ y, text: `${name}: ${bytes(held)} in ${plural(segments.length, "segment")}, ${bytes(sum("free"))} free${waiting}` });
      y += HEADING;
      let x = 0;
      const ordered = [...segments].sort((one, other) => other.size - one.size || one.addr - other.addr);
      for (const segment of ordered) {
        const wide = Math.max(2, segment.size * scale);
        if (x > 0 && x + wide > width + 0.5) {
          x = 0;
          y += ROW + GAP;
        }
        for (const part of segment.parts) {
          const from = ((part.addr - segment.addr) / segment.size) * wide;
          this.drawn.push({ x: x + from, y, width: (part.size / segment.size) * wide, part, segment });
        }
        x += wide + 3;
      }
      y += ROW + GAP + 6;
    }
    this.canvas.style.height = `${Math.max(60, y)}px`;
    const context = sized(this.canvas);
    this.paint(context, headings);
  }

  private paint(context: CanvasRenderingContext2D, headings: { y: number; text: string }[]): void {
    const colours = inks();
    context.textBaseline = "middle";
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = colours.ink;
    for (const { y, text } of headings) context.fillText(text, 0, y + HEADING / 2);
    for (const { x, y, width, part } of this.drawn) {
      context.fillStyle = colours[part.what];
      context.fillRect(x, y, Math.max(0.6, width), ROW);
      if (part.what === "waiting" || part.what === "unmapped") hatch(context, x, y, width, part.what === "unmapped" ? colours.grid : colours.paper);
      if (part.what === "live" && width > 3) {
        context.fillStyle = colours.paper;
        context.globalAlpha = 0.55;
        context.fillRect(x + width - 0.7, y, 0.7, ROW);
        context.globalAlpha = 1;
      }
      if (part.band && part.band.begin === this.chosen) {
        context.strokeStyle = colours.ink;
        context.lineWidth = 2;
        context.strokeRect(x, y, Math.max(2, width), ROW);
      }
    }
    // A frame around each segment shows where one ends.
    context.strokeStyle = colours.faint;
    context.lineWidth = 1;
    for (const segment of this.segments) {
      const own = this.drawn.filter((one) => one.segment === segment);
      if (own.length === 0) continue;
      const last = own[own.length - 1];
      context.strokeRect(own[0].x + 0.5, own[0].y + 0.5, Math.max(1, last.x + last.width - own[0].x - 1), ROW - 1);
    }
  }

  private at(event: MouseEvent): Drawn | undefined {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return this.drawn.find((one) => x >= one.x && x < one.x + Math.max(1, one.width) && y >= one.y && y < one.y + ROW);
  }

  private hover(event: MouseEvent): void {
    const found = this.at(event);
    this.tip.hidden = !found;
    if (!found) return;
    const { part, segment } = found;
    this.tip.replaceChildren(made("strong", "", `${part.what}, ${bytes(part.size)}`));
    if (part.band) this.tip.append(panel(this.state.side.run.facts, part.band));
    else this.tip.append(made("div", "", `at ${address(part.addr)}`));
    const kind = segment.isExpandable ? "expandable segment" : "segment";
    this.tip.append(made("div", "faint", `${kind} of ${bytes(segment.size)} at ${address(segment.addr)}`));
    const box = this.tip.parentElement!.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.tip.style.left = `${Math.max(0, Math.min(box.width - this.tip.offsetWidth - 4, x + 14))}px`;
    this.tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  private click(event: MouseEvent): void {
    const band = this.at(event)?.part.band;
    this.chosen = band?.begin;
    this.state.side.chosen = band;
    this.state.tell("chosen");
    this.draw();
  }

  private fillTable(): void {
    const table = element("map-table");
    const head = made("tr");
    const words = ["stream", "pool", "segment", "size", "live", "waiting", "free", "unmapped", "blocks"];
    for (const word of words) head.append(made("th", "", word));
    const { lanes } = this.state.side.run.facts;
    const rows = [...this.segments].sort((one, other) => other.size - one.size).slice(0, 200).map((segment) => {
      const row = made("tr");
      const { stream, pool } = lanes[segment.lane];
      const blocks = segment.parts.filter((part) => part.band).length;
      const cells = [String(stream), pool, address(segment.addr), ...[segment.size, segment.live, segment.waiting, segment.free, segment.unmapped].map(bytes), number(blocks)];
      for (const cell of cells) row.append(made("td", "", cell));
      return row;
    });
    const sums = (what: "live" | "waiting" | "free" | "unmapped") => this.segments.reduce((sum, one) => sum + one[what], 0);
    const held = sums("live") + sums("waiting") + sums("free");
    const more = this.segments.length > 200 ? `, of which the largest 200 are listed` : "";
    const caption = `${plural(this.segments.length, "segment")}${more}`;
    table.replaceChildren(made("caption", "", caption), head, ...rows);
    const views = this.elsewhere ? `, ${bytes(this.elsewhere)} in views, which borrow pages from what shows as free` : "";
    const line = element("map-sums");
    line.textContent = `${bytes(held)} held in ${plural(this.segments.length, "segment")}: ${bytes(sums("live"))} live, ${bytes(sums("waiting"))} waiting, ${bytes(sums("free"))} free${views}`;
    line.dataset.held = String(held);
    line.dataset.live = String(sums("live") + this.elsewhere);
    line.dataset.active = String(sums("live") + sums("waiting") + this.elsewhere);
  }
}

function hatch(context: CanvasRenderingContext2D, x: number, y: number, width: number, colour: string): void {
  context.save();
  context.beginPath();
  context.rect(x, y, width, ROW);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.2;
  context.beginPath();
  for (let at = x - ROW; at < x + width; at += PATTERN) {
    context.moveTo(at, y + ROW);
    context.lineTo(at + ROW, y);
  }
  context.stroke();
  context.restore();
}
