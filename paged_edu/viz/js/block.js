// One block of the pool on a canvas, and what lies over a block while it is copied. The still picture in paged_edu/viz/svg.py looks the same.
import { FONT, hatch, roundRect } from "./paint.js";
import { look } from "./palette.js";

// One block: outline, letters, a strip of slots, its id.
export function drawBlock(paint, block, colours) {
  const { x: left, y: top, cell, id, looks, view, blockSize, fresh, dim, by, kept, swapped } = block;
  const gap = cell >= 36 ? 4 : cell >= 14 ? 2 : 1, x = left + gap / 2, y = top + gap / 2, side = cell - gap, corner = Math.min(5, side / 5);
  paint.save();
  paint.globalAlpha = dim ? 0.3 : 1;
  if (!looks.length) {
    const owner = by !== null && by !== undefined ? look(by) : kept !== null && kept !== undefined && kept >= 0 ? look(kept) : null;
    if (owner || kept === -1) {
      const hue = owner ? owner.hue : colours.outline;
      paint.globalAlpha = 0.35;
      roundRect(paint, x + 0.5, y + 0.5, side - 1, side - 1, corner, hue);
      paint.globalAlpha = 0.5;
      hatch(paint, x + 1, y + 1, side - 2, side - 2, by !== null && by !== undefined ? "dots" : "rising", hue, 6);
      paint.globalAlpha = 1;
      if (owner && side >= 14) letters(paint, x, y, chip(side), corner, [{ ...owner, hollow: true }], 1, side, colours);
    }
    paint.globalAlpha = owner ? 1 : 0.45;
    roundRect(paint, x + 0.5, y + 0.5, side - 1, side - 1, corner, null, colours.outline);
    paint.globalAlpha = 1;
    number(paint, id, x, y, side, colours);
    return paint.restore();
  }
  const tint = dim ? 0.3 : 1, shared = view.owners.length > 1, tall = chip(side);
  paint.globalAlpha = 0.2 * tint;
  roundRect(paint, x + 0.5, y + 0.5, side - 1, side - 1, corner, looks[0].hue);
  paint.globalAlpha = tint;
  if (swapped) paint.setLineDash([3, 2]);
  roundRect(paint, x + 0.5, y + 0.5, side - 1, side - 1, corner, null, colours.outline);
  if (shared) roundRect(paint, x + 2.5, y + 2.5, side - 5, side - 5, Math.max(0, corner - 2), null, colours.outline);
  paint.setLineDash([]);
  if (looks[0].hatch !== "solid" && side >= 10) hatch(paint, x + 1, y + 1, side - 2, (tall || side - 1) - 1, looks[0].hatch, looks[0].hue, 5);
  letters(paint, x, y, tall, corner, looks, view.owners.length, side, colours);
  const pad = side >= 32 ? 3 : side >= 14 ? 2 : 0, stripY = y + tall + pad, height = side - tall - 2 * pad - (side >= 32 ? 10 : 0), pitch = (side - 2 * pad) / blockSize;
  paint.globalAlpha = 0.13 * tint;
  ticks(paint, x + pad, stripY, pitch, height, view.fill, pitch >= 2 ? blockSize : view.fill, colours.ink);
  paint.globalAlpha = tint;
  looks.forEach((owner, i) => ticks(paint, x + pad, stripY + (i * height) / looks.length, pitch, height / looks.length, 0, view.fill, owner.hue));
  if (fresh && side >= 14) {
    paint.strokeStyle = colours.ink;
    paint.lineWidth = 1.3;
    paint.strokeRect(x + pad + fresh[0] * pitch - 0.9, stripY - 0.9, (fresh[1] - fresh[0]) * pitch + 0.9, height + 1.8);
  }
  number(paint, id, x, y, side, colours);
  paint.restore();
}

const chip = (side) => side >= 32 ? 15 : side >= 14 ? 0.5 * side : 0;

function letters(paint, x, y, tall, corner, looks, refs, side, colours) {
  if (!tall) return;
  const size = 0.76 * tall, room = side < 32 || refs === 1 ? side : side - 17, shown = side >= 32 ? looks : looks.slice(0, 1);
  const wide = Math.min(Math.max(tall, 4 + 0.68 * size * Math.max(...shown.map((o) => o.letter.length))), room / shown.length);
  paint.font = `700 ${size}px ${FONT}`;
  paint.textAlign = "center";
  shown.forEach((owner, i) => {
    if (!owner.hollow) roundRect(paint, x + i * wide, y, wide, tall, i === 0 ? corner : 0, owner.hue);
    paint.fillStyle = owner.hollow ? colours.ink : owner.onHue;
    paint.fillText(owner.letter, x + (i + 0.5) * wide, y + 0.79 * tall, wide);
  });
  if (refs > 1 && side - shown.length * wide >= 8) {
    paint.fillStyle = colours.ink;
    paint.font = `700 ${0.7 * tall}px ${FONT}`;
    paint.textAlign = "right";
    paint.fillText(`×${refs}`, x + side - 2, y + 0.76 * tall, side - shown.length * wide);
  }
}

function ticks(paint, x, y, pitch, height, first, stop, colour) {
  if (stop <= first || height <= 0) return;
  paint.fillStyle = colour;
  if (pitch < 2) return paint.fillRect(x + first * pitch, y, (stop - first) * pitch, height);
  const wide = pitch - Math.min(1, 0.3 * pitch);
  for (let i = first; i < stop; i++) paint.fillRect(x + i * pitch, y, wide, height);
}

function number(paint, id, x, y, side, colours) {
  if (side < 24) return;
  paint.fillStyle = colours.muted;
  paint.font = `8.5px ${FONT}`;
  paint.textAlign = "right";
  paint.fillText(String(id), x + side - 4, y + side - 3.5);
}

export function arrow(paint, x, y, u, v) {
  const angle = Math.atan2(v - y, u - x), head = 8;
  paint.beginPath();
  paint.moveTo(x, y);
  paint.lineTo(u, v);
  for (const turn of [0.5, -0.5]) {
    paint.moveTo(u, v);
    paint.lineTo(u - head * Math.cos(angle + turn), v - head * Math.sin(angle + turn));
  }
  paint.stroke();
}

export function label(paint, x, y, text, colours) {
  paint.font = `600 11px ${FONT}`;
  const wide = paint.measureText(text).width + 10;
  roundRect(paint, x - wide / 2, y - 9, wide, 18, 9, colours.ground, colours.ink);
  paint.fillStyle = colours.ink;
  paint.textAlign = "center";
  paint.fillText(text, x, y + 4);
}
