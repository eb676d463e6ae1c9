// What the views have in common: the runs, the moment that is looked at, the window of time, the theme.

import type { Band, Run } from "./run";

export type ColourBy = "stack" | "size" | "stream" | "pool" | "category";

export interface View {
  from: number;
  to: number;
}

export interface Side {
  run: Run;
  view: View;
  moment: number;
  /** A moment that is kept to be compared with others. */
  pinned?: number;
  /** The band that stays shown, if one was clicked. */
  chosen?: Band;
}

type What = "moment" | "view" | "chosen" | "side" | "theme" | "colour";

export class State {
  private readonly listeners: [What[], () => void][] = [];
  current = 0;
  colourBy: ColourBy;

  constructor(readonly sides: Side[]) {
    this.colourBy = sides.some(({ run }) => run.facts.stacks.length > 0) ? "stack" : "size";
  }

  get side(): Side {
    return this.sides[this.current];
  }

  on(what: What[], listener: () => void): void {
    this.listeners.push([what, listener]);
  }

  tell(what: What): void {
    for (const [wanted, listener] of this.listeners) if (wanted.includes(what)) listener();
  }

  choose(side: number): void {
    if (side === this.current) return;
    this.current = side;
    this.tell("side");
  }

  setMoment(side: Side, moment: number): void {
    const last = side.run.facts.events - 1;
    side.moment = Math.max(0, Math.min(last, Math.round(moment)));
    this.tell("moment");
  }

  setView(side: Side, from: number, to: number): void {
    const { events } = side.run.facts;
    const width = Math.min(events, Math.max(8, to - from));
    const start = Math.max(0, Math.min(events - width, from));
    side.view = { from: start, to: start + width };
    this.tell("view");
  }
}

export function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

/** A new element with a class and a text. */
export function made(tag: string, className = "", text = ""): HTMLElement {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
