// The flame graph: memory by call stack, the outermost frame on top. Without stacks, by stream, pool,
// category and size instead.

import type { Facts } from "./facts";
import { spread } from "./colours";
import type { Band } from "./run";
import { made } from "./state";
import { bytes, shortFrame } from "./words";

interface Node {
  name: string;
  bytes: number;
  count: number;
  children: Map<string, Node>;
}

const ROW = 20;
const NARROWEST = 0.0008;

const node = (name: string): Node => ({ name, bytes: 0, count: 0, children: new Map() });

export class Flame {
  private root = node("all");
  /** The way from the root to what is looked at. */
  private path: Node[] = [];
  private word = "";

  constructor(private readonly place: HTMLElement) {}

  show(facts: Facts, bands: Band[]): void {
    this.root = node("all");
    const stacks = new Map<number, string[]>();
    for (const band of bands) {
      const { stream, pool } = facts.lanes[band.lane];
      let names = band.stack >= 0 ? stacks.get(band.stack) : undefined;
      if (!names && band.stack >= 0) {
        names = facts.stacks[band.stack].map((at) => shortFrame(facts, at)).reverse();
        stacks.set(band.stack, names);
      }
      names ??= [`stream ${stream}`, `${pool} pool`, facts.kinds[band.kind], bytes(band.size)];
      let at = this.root;
      at.bytes += band.size;
      at.count += 1;
      for (const name of names) {
        let next = at.children.get(name);
        if (!next) {
          next = node(name);
          at.children.set(name, next);
        }
        next.bytes += band.size;
        next.count += 1;
        at = next;
      }
    }
    this.path = [this.root];
    this.draw();
  }

  search(word: string): void {
    this.word = word;
    this.draw();
  }

  private draw(): void {
    const boxes: HTMLElement[] = [];
    let depth = 0;
    for (const one of this.path) boxes.push(this.box(one, 0, 1, depth++, true));
    const focus = this.path[this.path.length - 1];
    const deepest = this.lay(focus, 0, 1, depth, boxes);
    this.place.style.height = `${(Math.max(depth, deepest) + 0.2) * ROW}px`;
    this.place.replaceChildren(...boxes);
  }

  /** Places what is below a node; how deep that goes. */
  private lay(parent: Node, left: number, width: number, depth: number, boxes: HTMLElement[]): number {
    let deepest = depth;
    let at = left;
    const children = [...parent.children.values()].sort((one, other) => other.bytes - one.bytes);
    for (const child of children) {
      const share = (child.bytes / parent.bytes) * width;
      if (share < NARROWEST) break;
      boxes.push(this.box(child, at, share, depth, false, parent));
      deepest = Math.max(deepest, depth + 1, this.lay(child, at, share, depth + 1, boxes));
      at += share;
    }
    return deepest;
  }

  private box(one: Node, left: number, width: number, depth: number, isAbove: boolean, parent?: Node): HTMLElement {
    const box = made("button", "flame-box", width > 0.02 ? one.name : "");
    const share = ((100 * one.bytes) / this.root.bytes).toFixed(1);
    const words = `${one.name}: ${bytes(one.bytes)} in ${one.count} blocks, ${share} %`;
    box.title = words;
    box.setAttribute("aria-label", words);
    box.style.left = `${left * 100}%`;
    box.style.width = `calc(${width * 100}% - 1px)`;
    box.style.top = `${depth * ROW}px`;
    const hue = 8 + (spread([...one.name].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 1e9, 7)) % 12) * 4;
    box.style.setProperty("--hue", String(hue));
    if (isAbove) box.classList.add("above");
    if (this.word) box.classList.add(one.name.toLowerCase().includes(this.word) ? "found" : "other");
    box.addEventListener("click", () => {
      const at = this.path.indexOf(one);
      this.path = at >= 0 ? this.path.slice(0, at + 1) : [...this.way(one, parent)];
      this.draw();
    });
    return box;
  }

  /** The way from the root to a node. */
  private way(target: Node, parent?: Node): Node[] {
    const walk = (at: Node, way: Node[]): Node[] | undefined => {
      if (at === target) return [...way, at];
      for (const child of at.children.values()) {
        const found = walk(child, [...way, at]);
        if (found) return found;
      }
      return undefined;
    };
    return walk(this.root, []) ?? [this.root, ...(parent ? [parent] : [])];
  }
}
