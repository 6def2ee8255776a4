// Axes, marks and steps of the curves, as paged_edu/viz/chart.py and curves_svg.py draw them. No page.

// Marks of an axis from 0 to at least `largest`: four to six steps of 1, 2, 2.5 or 5 times a power of ten.
export function nice(largest) {
  if (largest < 1e-9) return [0, 1];
  const base = 10 ** Math.floor(Math.log10(largest)), step = [0.1, 0.2, 0.25, 0.5, 1, 2, 2.5].find((part) => largest / (part * base) <= 6) * base;
  return Array.from({ length: Math.ceil(Number((largest / step).toFixed(9))) + 1 }, (_, i) => Number((step * i).toPrecision(6)));
}

// The parts of a line through points [x, y] that are not above `top`.
export function clipped(points, top) {
  const parts = [];
  let now = null;
  points.forEach(([x, y], i) => {
    const before = points[i - 1];
    if (before && before[1] > top !== y > top) {
      const edge = [before[0] + ((top - before[1]) * (x - before[0])) / (y - before[1]), top];
      if (y > top) now.push(edge);
      else parts.push((now = [edge]));
    }
    if (y <= top) {
      if (now === null) parts.push((now = []));
      now.push([x, y]);
    } else now = null;
  });
  return parts.filter((part) => part.length > 1);
}

// Path data of a mark, a plotly symbol by name, around a point.
export function mark(kind, x, y, size = 4.6) {
  if (kind === "square") return `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`;
  if (kind === "circle") return `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0z`;
  const turns = { diamond: [0, 90, 180, 270], "triangle-up": [0, 120, 240], "triangle-down": [180, 300, 60] }[kind], far = 1.25 * size;
  return `M${turns.map((turn) => `${(x + far * Math.sin((turn * Math.PI) / 180)).toFixed(2)} ${(y - far * Math.cos((turn * Math.PI) / 180)).toFixed(2)}`).join("L")}z`;
}

export const joined = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// A line through values that hold until the next time: x and y are already places in the picture.
export const stepped = (xs, ys) => xs.map((x, i) => (i ? `H${x.toFixed(1)}V${ys[i].toFixed(1)}` : `M${x.toFixed(1)} ${ys[0].toFixed(1)}`)).join("");
