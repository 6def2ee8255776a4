// Where the blocks of several tables stand when what they have in common is drawn once, as paged_edu/viz/layout.py does it.

// paths: Map of key (number) -> blocks. Returns {order: keys, one a row; columns: [[logical, left out]]; cells: [{column, logical, block, rows}];
// edges: [[cell, cell]]; ends: of each row the place of its last cell, or null}.
export function layOut(paths, mostColumns) {
  const first = new Map(), at = (logical, block) => `${logical} ${block}`, keys = [...paths.keys()].sort((a, b) => a - b);
  for (const key of keys) paths.get(key).forEach((block, logical) => { if (!first.has(at(logical, block))) first.set(at(logical, block), key); });
  const ranks = new Map(keys.map((key) => [key, paths.get(key).map((block, logical) => first.get(at(logical, block)))]));
  const order = [...keys].sort((a, b) => compare(ranks.get(a), ranks.get(b)) || a - b);
  const groups = Array.from({ length: Math.max(0, ...keys.map((key) => paths.get(key).length)) }, () => new Map());
  order.forEach((key, row) => paths.get(key).forEach((block, logical) => {
    if (!groups[logical].has(block)) groups[logical].set(block, []);
    groups[logical].get(block).push(row);
  }));
  const columns = columnsOf(groups.map((group) => [...group.values()].sort((a, b) => a[0] - b[0])), mostColumns), cells = [];
  columns.forEach(([logical, leftOut], column) => {
    if (!leftOut) for (const [block, rows] of groups[logical]) cells.push({ column, logical, block, rows });
  });
  const edges = [], last = new Map();
  cells.forEach((cell, place) => {
    if (last.has(cell.rows[0])) edges.push([last.get(cell.rows[0]), place]);
    for (const row of cell.rows) last.set(row, place);
  });
  return { order, columns, cells, edges, ends: order.map((_, row) => last.get(row) ?? null) };
}

// The height of a cell, in rows.
export const rowOf = (cell) => (cell.rows[0] + cell.rows[cell.rows.length - 1]) / 2;

function compare(a, b) {
  for (let i = 0; i < a.length && i < b.length; i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

function columnsOf(shapes, most) {
  if (shapes.length <= most) return shapes.map((_, logical) => [logical, 0]);
  const columns = stretches(shapes, (before, after) => JSON.stringify(before) === JSON.stringify(after));
  return columns.length <= most ? columns : stretches(shapes, noFork);
}

// Whether no two groups of `after` were one in `before`.
function noFork(before, after) {
  const group = new Map(before.flatMap((rows, i) => rows.map((row) => [row, i])));
  return new Set(after.map((rows) => group.get(rows[0]))).size === after.length;
}

function stretches(shapes, same) {
  const columns = [];
  let start = 0;
  for (let stop = 1; stop <= shapes.length; stop++) {
    if (stop < shapes.length && same(shapes[stop - 1], shapes[stop])) continue;
    if (stop - start <= 3) for (let logical = start; logical < stop; logical++) columns.push([logical, 0]);
    else columns.push([start, 0], [start + 1, stop - start - 2], [stop - 1, 0]);
    start = stop;
  }
  return columns;
}
