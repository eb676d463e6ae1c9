// Axes: a canvas with a plot in it, its ticks, and its size.

import { inks } from "./colours";
import type { View } from "./state";
import { bytes, number } from "./words";

export const LEFT = 74;
export const RIGHT = 12;
export const TOP = 14;
export const BOTTOM = 24;

/** Gives a canvas as many pixels as the screen has for it; its context, in CSS pixels. */
export function sized(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return context;
}

/** Steps of 1, 2 or 5 times a power of ten, or of two for bytes. */
function step(span: number, count: number, isBytes: boolean): number {
  const rough = span / count;
  if (isBytes) return 2 ** Math.ceil(Math.log2(Math.max(1, rough)));
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const times = [1, 2, 5, 10].find((times) => times * power >= rough) ?? 10;
  return Math.max(1, times * power);
}

export interface Frame {
  width: number;
  height: number;
  x(event: number): number;
  y(bytes: number): number;
}

/** Draws both axes of a plot of bytes over events. */
export function axes(context: CanvasRenderingContext2D, view: View, top: number): Frame {
  const { canvas } = context;
  const width = canvas.clientWidth - LEFT - RIGHT;
  const height = canvas.clientHeight - TOP - BOTTOM;
  const x = (event: number) => LEFT + ((event - view.from) / (view.to - view.from)) * width;
  const y = (size: number) => TOP + height * (1 - size / top);
  const colours = inks();
  context.strokeStyle = colours.grid;
  context.fillStyle = colours.faint;
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const high = step(top, Math.max(2, height / 56), true);
  for (let at = 0; at <= top; at += high) {
    context.fillText(at === 0 ? "0" : bytes(at).replace(".00", ""), LEFT - 8, y(at));
    context.beginPath();
    context.moveTo(LEFT, Math.round(y(at)) + 0.5);
    context.lineTo(LEFT + width, Math.round(y(at)) + 0.5);
    context.stroke();
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  const wide = step(view.to - view.from, Math.max(2, width / 110), false);
  for (let at = Math.ceil(view.from / wide) * wide; at <= view.to; at += wide) {
    const place = x(at);
    if (place < LEFT + 12 || place > LEFT + width - 20) continue;
    context.fillText(number(at), place, TOP + height + 7);
    context.beginPath();
    context.moveTo(Math.round(place) + 0.5, TOP + height);
    context.lineTo(Math.round(place) + 0.5, TOP + height + 4);
    context.stroke();
  }
  return { width, height, x, y };
}

/** Draws a line through the columns, as steps. */
export function line(
  context: CanvasRenderingContext2D,
  frame: Frame,
  values: Float64Array,
  colour: string,
  width = 1.5,
): void {
  const each = frame.width / values.length;
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.beginPath();
  let before = NaN;
  values.forEach((value, column) => {
    const y = frame.y(value);
    if (column === 0) context.moveTo(LEFT, y);
    else if (y !== before) context.lineTo(LEFT + column * each, before);
    if (y !== before) context.lineTo(LEFT + column * each, y);
    before = y;
  });
  context.lineTo(LEFT + frame.width, before);
  context.stroke();
}

/** An upright line at an event, with a word on top. */
export function mark(
  context: CanvasRenderingContext2D,
  frame: Frame,
  event: number,
  word: string,
  colour: string,
  dash: number[],
  row = 0,
): void {
  const x = Math.round(frame.x(event)) + 0.5;
  if (x < LEFT || x > LEFT + frame.width) return;
  context.save();
  context.strokeStyle = colour;
  context.fillStyle = colour;
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x, TOP - 2);
  context.lineTo(x, TOP + frame.height);
  context.stroke();
  if (word) {
    const isRight = x > LEFT + frame.width * 0.7;
    context.textAlign = isRight ? "right" : "left";
    context.textBaseline = "top";
    context.font = "600 12px system-ui, sans-serif";
    const room = context.measureText(word).width;
    context.save();
    context.globalAlpha = 0.82;
    context.fillStyle = inks().paper;
    context.fillRect(isRight ? x - 9 - room : x + 3, TOP - 3 + row * 18, room + 6, 17);
    context.restore();
    context.fillText(word, isRight ? x - 6 : x + 6, TOP + row * 18);
  }
  context.restore();
}
