"use strict";
// Episodes: decompressed when they are needed, unfolded when they are shown, and chosen by what they hold.

function visible(text) {
  // Control characters as their pictures: a NUL or an escape in a completion must be seen, and must not break the page.
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) => (c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))));
}

async function inflate(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Where the text of a packed part is found; a page that follows a run asks its server instead.
const PARTS = { text: async (id) => document.getElementById(id).textContent };

// Undo the sharing of text between prompts; see trainers/report/pack.py.
function unfold(episodes, fields) {
  let first = "";
  for (const episode of episodes) {
    let before = first;
    episode.whole = episode.steps.map((values, index) => {
      const step = Object.fromEntries(fields.map((name, i) => [name, values[i]]));
      if (step.prompt !== null) {
        const [start, middle, end] = step.prompt;
        step.prompt = before.slice(0, start) + middle + (end ? before.slice(before.length - end) : "");
        step.fresh = index ? start : 0;
        if (index === 0) first = step.prompt;
        before = step.prompt + (step.response || "");
      }
      return step;
    });
  }
}

function outcomeOf(episode) {
  return episode.error !== null ? "failed" : episode.success ? "solved" : "unsolved";
}

// The calls of an action for people.
function callsOf(action) {
  try {
    return visible(JSON.parse(action).map((call) => `${call.name}(${JSON.stringify(call.arguments)})`).join("\n"));
  } catch { return visible(action); } // Python writes NaN and Infinity, which JSON does not know
}

const OUTCOMES = { solved: ["✓", "solved"], unsolved: ["✗", "not solved"], failed: ["!", "failed"] };

class Store {
  constructor(data) {
    this.data = data;
    this.at = Object.fromEntries(data.step_fields.map((name, i) => [name, i]));
    this.files = new Map();
    this.advantages = new Map();
    this.drawn = new Map();
  }

  // A part of the page, decompressed once and kept; one that fails is asked for again the next time.
  async part(kept, name, file, prepared = (values) => values) {
    if (!kept.has(file)) kept.set(file, PARTS.text(`${name}-${file}`).then(inflate).then(prepared));
    try {
      return await kept.get(file);
    } catch (error) {
      kept.delete(file);
      throw error;
    }
  }

  // Episodes of a file, their steps still packed.
  load(file) { return this.part(this.files, "episodes", file, (episodes) => this.prepared(episodes, file)); }

  prepared(episodes, file) {
    const groups = new Map();
    episodes.forEach((episode, place) => {
      if (!groups.has(episode.group)) groups.set(episode.group, { n: 0, solved: 0, rewards: new Set() });
      const group = groups.get(episode.group), refusal = this.at.refusal;
      group.n += 1;
      group.solved += outcomeOf(episode) === "solved";
      if (outcomeOf(episode) !== "failed") group.rewards.add(episode.reward);
      Object.assign(episode, { file, place, members: group, all: episodes, text: null, whole: null });
      episode.refusals = new Set(episode.steps.map((step) => step[refusal]).filter((one) => one !== null));
    });
    return episodes;
  }

  steps(episode) {
    if (episode.whole === null) unfold(episode.all, this.data.step_fields);
    return episode.whole;
  }

  // Advantages of a file's steps under every method, or why there are none.
  async credited(file) {
    return this.data.files[file].credited ? this.part(this.advantages, "advantages", file) : null;
  }

  // Graphs of a file's groups, by their ids.
  graphs(file) { return this.part(this.drawn, "graphs", file); }

  // What a search looks through: the task, observations, completions, actions and errors; not what prompts repeat.
  text(episode) {
    if (episode.text === null) {
      const { observation, response, action, parse_error, error } = this.at;
      const parts = [episode.task, episode.task_id, episode.error, episode.last];
      for (const step of episode.steps) parts.push(step[observation], step[response], step[action], step[parse_error], step[error]);
      episode.text = parts.filter((part) => part !== null && part !== undefined).join("\n").toLowerCase();
    }
    return episode.text;
  }

  // Whether an episode fits; criteria that are not set fit every episode.
  fits(episode, { outcome, type, invalid, reward, low, high, text }) {
    return (!outcome || outcomeOf(episode) === outcome) && (!type || episode.type === type) &&
      (!invalid || (invalid === "any" ? episode.refusals.size > 0 : invalid === "none" ? episode.refusals.size === 0 : episode.refusals.has(invalid))) &&
      episode.reward >= reward && episode.steps.length >= low && episode.steps.length <= high &&
      (!text || this.text(episode).includes(text));
  }
}
