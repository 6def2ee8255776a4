// What a threshold makes of latency curves, as paged_edu/viz/crossings.py computes and says it (a test compares the two). No page.

const NONE = "–";

// The rate at which points [[rate, s/token], ...] first pass the threshold, on straight lines between them; null: they do not.
export function crossing(points, threshold) {
  let before = null;
  for (const [x, y] of points) {
    if (y > threshold) return before === null ? null : before[0] + ((threshold - before[1]) * (x - before[0])) / (y - before[1]);
    before = [x, y];
  }
  return null;
}

export const leading = (names) => (names.includes("vLLM") ? "vLLM" : names[names.length - 1]);

const over = (a, b) => (a !== null && b ? a / b : null);

// systems: [{name, ours: points, paper: points}]; a row a system.
export function compare(systems, threshold) {
  const rates = systems.map(({ name, ours, paper }) => ({ system: name, ours: crossing(ours, threshold), paper: crossing(paper, threshold) }));
  const first = leading(systems.map(({ name }) => name)), mine = rates.find(({ system }) => system === first);
  return rates.map((row) => {
    const error = over(row.ours, row.paper), other = row.system !== first;
    return { ...row, error: error === null ? null : error - 1, ratio: other ? over(mine.ours, row.ours) : null, paperRatio: other ? over(mine.paper, row.paper) : null };
  });
}

export function fixed(value, digits) {
  const scale = 10 ** digits, whole = Math.floor(Math.abs(value) * scale + 0.5);
  return (value < 0 && whole ? "-" : "") + (whole / scale).toFixed(digits);
}

const rateWords = (rate) => (rate === null ? NONE : fixed(rate, rate < 1 ? 3 : rate < 10 ? 2 : 1));

function errorWords(error) {
  if (error === null) return NONE;
  const words = fixed(100 * error, 1);
  return `${words[0] === "-" ? "" : "+"}${words} %`;
}

const ratioWords = (ratio) => (ratio === null ? NONE : `${fixed(ratio, 2)} ×`);

export const cells = (row) => [row.system, rateWords(row.ours), rateWords(row.paper), errorWords(row.error), ratioWords(row.ratio), ratioWords(row.paperRatio)];

export function told(rows, threshold) {
  const first = leading(rows.map(({ system }) => system)), mine = rows.find(({ system }) => system === first), at = `At ${fixed(threshold, 2)} s/token`;
  if (mine.ours === null) return `${at}: no rate of ours for ${first}; its curve does not cross this line`;
  const said = `${at}: ${first} serves ${rateWords(mine.ours)} requests/s`;
  let best = null;
  for (const row of rows) if (row.ratio !== null && (best === null || row.ours > best.ours)) best = row;
  if (best === null) return `${said}; no other curve of ours crosses this line`;
  const paper = best.paperRatio === null ? "" : ` (paper: ${ratioWords(best.paperRatio)})`;
  return `${said}, ${ratioWords(best.ratio)} the best other, ${best.system}${paper}`;
}

// A rate as it was chosen, without zeros at the end.
export const rateText = (rate) => fixed(rate, 4).replace(/0+$/, "").replace(/\.$/, "");
