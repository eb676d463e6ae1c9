// Gestures: how a window of time is moved and narrowed, by mouse, wheel, fingers and keys.

import type { Side, State } from "./state";

export interface Plot {
  canvas: HTMLCanvasElement;
  side: Side;
  /** Where the plot lies in the canvas, in CSS pixels. */
  left(): number;
  width(): number;
  hover(x: number, y: number): void;
  leave(): void;
  click(x: number, y: number): void;
}

const ZOOM = 1.25;

export function zoom(state: State, side: Side, factor: number, at: number): void {
  const { from, to } = side.view;
  state.setView(side, at - (at - from) * factor, at + (to - at) * factor);
}

export function pan(state: State, side: Side, events: number): void {
  const { from, to } = side.view;
  state.setView(side, from + events, to + events);
}

export function listen(state: State, plot: Plot): void {
  const { canvas } = plot;
  const pointers = new Map<number, { x: number; y: number }>();
  let moved = 0;
  const place = (event: PointerEvent | WheelEvent) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const eventAt = (x: number) => {
    const { from, to } = plot.side.view;
    return from + ((x - plot.left()) / plot.width()) * (to - from);
  };
  const perPixel = () => (plot.side.view.to - plot.side.view.from) / plot.width();

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      pan(state, plot.side, sideways * perPixel());
    } else {
      const steps = Math.max(-3, Math.min(3, event.deltaY / 100));
      zoom(state, plot.side, ZOOM ** steps, eventAt(place(event).x));
    }
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    if (pointers.size === 1) moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = place(event);
    const before = pointers.get(event.pointerId);
    if (!before) return plot.hover(now.x, now.y);
    const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    pointers.set(event.pointerId, now);
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (others.length === 0) {
      if (moved > 3) {
        canvas.classList.add("dragging");
        plot.leave();
        pan(state, plot.side, (before.x - now.x) * perPixel());
      }
      return;
    }
    const other = others[0];
    const gap = (at: { x: number }) => Math.max(8, Math.abs(at.x - other.x));
    zoom(state, plot.side, gap(before) / gap(now), eventAt((now.x + other.x) / 2));
    pan(state, plot.side, ((before.x - now.x) / 2) * perPixel());
  });
  const up = (event: PointerEvent) => {
    const was = pointers.delete(event.pointerId);
    canvas.classList.remove("dragging");
    if (was && pointers.size === 0 && moved <= 3 && event.type === "pointerup") {
      const { x, y } = place(event);
      plot.click(x, y);
    }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => plot.leave());
  canvas.addEventListener("dblclick", (event) => {
    const box = canvas.getBoundingClientRect();
    zoom(state, plot.side, 0.25, eventAt(event.clientX - box.left));
  });
  canvas.addEventListener("keydown", (event) => key(state, plot.side, event));
}

function key(state: State, side: Side, event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { from, to } = side.view;
  const { events, peaks } = side.run.facts;
  const width = to - from;
  const isInside = side.moment >= from && side.moment <= to;
  const middle = isInside ? side.moment : (from + to) / 2;
  const acts: Record<string, () => void> = {
    ArrowLeft: () => pan(state, side, -width / 10),
    ArrowRight: () => pan(state, side, width / 10),
    ArrowUp: () => zoom(state, side, 1 / ZOOM, middle),
    ArrowDown: () => zoom(state, side, ZOOM, middle),
    "+": () => zoom(state, side, 1 / ZOOM, middle),
    "=": () => zoom(state, side, 1 / ZOOM, middle),
    "-": () => zoom(state, side, ZOOM, middle),
    Home: () => state.setView(side, 0, width),
    End: () => state.setView(side, events - width, events),
    "0": () => state.setView(side, 0, events),
    p: () => state.setMoment(side, peaks.allocated.event),
    ",": () => state.setMoment(side, side.moment - 1),
    ".": () => state.setMoment(side, side.moment + 1),
  };
  const act = acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
