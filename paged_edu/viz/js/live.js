// The page of a running server: block pool and timeline of what it serves now, from events that the server streams. See paged_edu/server/live.py.
import { Player } from "./player.js";
import { recording } from "./frames.js";
import { mount } from "./controls.js";
import { h, setText } from "./dom.js";

const PAUSE = 2000;

// The lines "data: ..." of a stream, as objects, as they come.
export async function read(body, told) {
  const decoder = new TextDecoder(), reader = body.getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) told(JSON.parse(part.slice(6)));
  }
}

// What the server counts, as a sentence.
export function sentence(numbers, tokensPerSecond) {
  const { running, waiting, swapped, used, blocks, cached, waste, finished } = numbers;
  const queue = `${running} running, ${waiting} waiting${swapped ? `, ${swapped} swapped out` : ""}`;
  const memory = `${used} of ${blocks} blocks in use, ${(100 * waste).toFixed(1)} % of their slots without a token; ${cached} cached`;
  return `${queue}. ${memory}. ${tokensPerSecond.toFixed(0)} tokens/s; ${finished} answered.`;
}

function connect(el, modules) {
  const line = h("p", { role: "status" }, "connecting ..."), place = h("div");
  el.replaceChildren(line, place);
  let player = null, unmount = null, before = null;

  function told(message) {
    if (message.kind === "reset") {
      unmount?.();
      player?.destroy();
      player = new Player({ tracks: message.tracks.map((track) => ({ label: "", trace: recording(track) })), panes: message.panes, words: message.words, name: "server" });
      unmount = mount(place, player, modules);
      el.player = player;
    } else if (message.kind === "events" && message.events.length) {
      const newest = player.shown >= player.last && !player.playing;      // whoever looks at an older step is left there
      player.push(0, message.events, message.words);
      if (newest) player.seek(player.last);
    }
    const now = performance.now(), { generated } = message.numbers;
    const speed = before && now > before.now ? (1000 * (generated - before.generated)) / (now - before.now) : 0;
    if (!before || now - before.now > 900) before = { now, generated };
    setText(line, sentence(message.numbers, speed));
  }

  async function listen() {
    const key = sessionStorage.getItem("paged_edu_key");
    const answer = await fetch("live", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (answer.status === 401) return ask();
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    await read(answer.body, told);
    throw new Error("the server has ended the stream");
  }

  function ask() {
    const input = h("input", { type: "password", "aria-label": "API key", autocomplete: "off" });
    line.replaceChildren(h("form", { onsubmit: (event) => {
      event.preventDefault();
      sessionStorage.setItem("paged_edu_key", input.value);
      start();
    } }, h("label", {}, "This server asks for its API key: ", input), " ", h("button", { type: "submit" }, "Show")));
    input.focus();
  }

  function start() {
    listen().catch((error) => {
      setText(line, `${error.message}; trying again ...`);
      setTimeout(start, PAUSE);
    });
  }

  start();
}

export function start(modules) { connect(document.querySelector("main"), modules); }
