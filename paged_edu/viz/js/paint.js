// Shapes on a canvas: rounded rectangles and hatches.

export const FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif";

export function roundRect(paint, x, y, width, height, radius, fill = null, line = null) {
  paint.beginPath();
  paint.roundRect(x, y, Math.max(0, width), Math.max(0, height), radius);
  if (fill) {
    paint.fillStyle = fill;
    paint.fill();
  }
  if (line) {
    paint.strokeStyle = line;
    paint.lineWidth = 1;
    paint.stroke();
  }
}

// Fill a rectangle with lines ("rising", "falling", "crossed") or "dots"; "solid" draws nothing.
export function hatch(paint, x, y, width, height, kind, colour, gap = 6) {
  if (kind === "solid" || width <= 0 || height <= 0) return;
  paint.beginPath();
  if (kind === "dots") {
    paint.fillStyle = colour;
    for (let u = gap / 2; u < width; u += gap) for (let v = gap / 2; v < height; v += gap) paint.rect(x + u - 0.8, y + v - 0.8, 1.6, 1.6);
    return paint.fill();
  }
  paint.strokeStyle = colour;
  paint.lineWidth = 1.2;
  for (let offset = gap / 2; offset < width + height; offset += gap) {
    const [x0, y0] = offset <= width ? [offset, 0] : [width, offset - width], [x1, y1] = offset <= height ? [0, offset] : [offset - height, height];
    if (kind !== "falling") {
      paint.moveTo(x + x0, y + y0);
      paint.lineTo(x + x1, y + y1);
    }
    if (kind !== "rising") {
      paint.moveTo(x + width - x0, y + y0);
      paint.lineTo(x + width - x1, y + y1);
    }
  }
  paint.stroke();
}
