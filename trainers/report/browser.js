"use strict";
// The episode browser. Episodes of an iteration are decompressed when it is chosen, and kept.

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

// Undo the sharing of text between prompts; see trainers/report/pack.py.
function unfold(episodes, fields) {
  let first = "";
  for (const episode of episodes) {
    let before = first;
    episode.steps = episode.steps.map((values, index) => {
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
  return episodes;
}

function slug(label) { return label.replace(/[^\p{L}\p{N}]+/gu, "-"); }

function outcomeOf(episode) {
  return episode.error !== null ? "failed" : episode.success ? "solved" : "unsolved";
}

const OUTCOMES = { solved: ["✓", "solved"], unsolved: ["✗", "not solved"], failed: ["!", "failed"] };

class Browser {
  constructor(data) {
    this.data = data;
    this.cache = new Map();
    this.file = -1;
    this.shown = [];
    this.episode = null;
    this.step = 0;
    this.$ = (id) => document.getElementById(id);
    data.files.forEach((file, i) => {
      const failed = file.failed ? `, ${file.failed} failed` : "";
      this.$("iteration").append(make("option", { value: i }, `${file.label} (${file.solved}/${file.episodes} solved${failed})`));
    });
    this.$("iteration").addEventListener("change", () => this.open(Number(this.$("iteration").value)));
    for (const id of ["outcome", "type", "reward", "steps-min", "steps-max", "search"]) {
      this.$(id).addEventListener("input", () => this.filter());
    }
    this.$("filters").addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.follow());
  }

  async load(file) {
    if (!this.cache.has(file)) {
      const element = this.$(`episodes-${file}`);
      this.cache.set(file, inflate(element.textContent).then((episodes) => unfold(episodes, this.data.step_fields)));
    }
    return this.cache.get(file);
  }

  // Addresses are #episodes/<label>/<episode id>/<step>, e.g. #episodes/iteration-3/17/2.
  async follow() {
    const [section, label, id, step] = decodeURIComponent(location.hash.slice(1)).split("/");
    if (section !== "episodes" || label === undefined) return false;
    const file = this.data.files.findIndex((one) => slug(one.label) === label);
    if (file < 0) return false;
    await this.open(file, id === undefined ? null : Number(id), Number(step || 0));
    this.$("episodes").scrollIntoView({ behavior: "instant" });
    return true;
  }

  async open(file, id = null, step = 0) {
    this.$("iteration").value = String(file);
    if (file !== this.file) {
      this.file = file;
      this.$("count").textContent = "unpacking …";
      let episodes;
      try {
        episodes = await this.load(file);
      } catch (error) {
        this.$("count").textContent = `These episodes cannot be shown by this browser (${error}).`;
        return;
      }
      if (this.file !== file) return; // another iteration was chosen meanwhile
      this.all = episodes;
      const chosen = this.$("type").value;
      const types = [...new Set(episodes.map((episode) => episode.type))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      this.$("type").replaceChildren(make("option", { value: "" }, "all"), ...types.map((type) => make("option", { value: type }, type)));
      this.$("type").value = types.includes(chosen) ? chosen : "";
      this.episode = null;
    }
    this.filter(id, step);
  }

  filter(id = this.episode ? this.episode.id : null, step = this.step) {
    if (!this.all) return;
    const number = (name, otherwise) => (this.$(name).value === "" ? otherwise : Number(this.$(name).value));
    const outcome = this.$("outcome").value, type = this.$("type").value, text = this.$("search").value.toLowerCase();
    const least = number("reward", -Infinity), low = number("steps-min", 0), high = number("steps-max", Infinity);
    this.shown = this.all.filter((episode) =>
      (!outcome || outcomeOf(episode) === outcome) && (!type || episode.type === type) && episode.reward >= least &&
      episode.steps.length >= low && episode.steps.length <= high &&
      (!text || [episode.task, episode.task_id, ...episode.steps.flatMap((one) => [one.prompt || one.observation, one.response])]
        .some((part) => part !== null && part.toLowerCase().includes(text))));
    this.list();
    const chosen = this.shown.find((episode) => episode.id === id) || this.shown[0] || null;
    this.select(chosen, chosen && chosen.id === id ? step : 0);
  }

  list() {
    const groups = new Map();
    for (const episode of this.shown) {
      if (!groups.has(episode.group)) groups.set(episode.group, []);
      groups.get(episode.group).push(episode);
    }
    const list = this.$("list");
    list.replaceChildren();
    for (const [group, members] of groups) {
      const whole = this.all.filter((episode) => episode.group === group);
      const solved = whole.filter((episode) => outcomeOf(episode) === "solved").length;
      const title = `group ${group} · ${members[0].type} · ${solved}/${whole.length} solved · ${members[0].task_id}`;
      const alone = whole.length === 1;
      const box = make("div", { role: "group", "aria-label": visible(title) });
      if (!alone) box.append(make("div", { class: "group", title: visible(title) }, visible(title)));
      for (const episode of members) {
        const outcome = outcomeOf(episode), [mark, word] = OUTCOMES[outcome];
        const row = make("div", { class: "row", role: "option", id: `episode-${episode.id}`, "aria-selected": "false",
          on: { click: () => this.select(episode, 0) } },
          make("span", { class: outcome, "aria-label": word, title: word }, mark), make("span", {}, `#${episode.id}`),
          make("span", {}, `${alone ? `${visible(episode.type)}, ` : ""}reward ${short(episode.reward)}`),
          make("span", {}, `${episode.steps.length} step${episode.steps.length === 1 ? "" : "s"}`));
        box.append(row);
      }
      list.append(box);
    }
    this.$("count").textContent = `${this.shown.length} of ${this.all.length} episodes`;
  }

  select(episode, step) {
    const list = this.$("list");
    list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    this.episode = episode;
    list.removeAttribute("aria-activedescendant");
    if (episode) {
      const row = this.$(`episode-${episode.id}`);
      row.setAttribute("aria-selected", "true");
      list.setAttribute("aria-activedescendant", row.id);
      const box = list.getBoundingClientRect(), own = row.getBoundingClientRect();
      if (own.top < box.top || own.bottom > box.bottom) list.scrollTop += own.top - box.top - box.height / 3;
    }
    this.show(step);
  }

  show(step) {
    const pane = this.$("episode"), episode = this.episode;
    if (!episode) {
      pane.replaceChildren(make("p", { class: "empty" }, "No episode fits the filters."));
      return;
    }
    this.step = Math.max(0, Math.min(step, episode.steps.length - 1));
    const label = this.data.files[this.file].label;
    const [, word] = OUTCOMES[outcomeOf(episode)];
    const parts = [
      make("h3", {}, `Episode ${episode.id}, ${label}`),
      make("p", { class: "meta" }, make("b", { class: outcomeOf(episode) }, word), `, ${episode.end}; reward `, make("b", {}, short(episode.reward)),
        `, score ${short(episode.score)}; ${visible(`${episode.env}, ${episode.type}, ${episode.task_id}, split ${episode.split}, group ${episode.group}`)}`),
    ];
    if (episode.error !== null) parts.push(make("p", { class: "problem" }, `Failed, not trained on: ${visible(episode.error)}`));
    const strip = make("div", { class: "strip", role: "group", "aria-label": "Steps" });
    episode.steps.forEach((one, i) => {
      const kind = `${one.advantage > 0 ? "good" : one.advantage < 0 ? "bad" : ""} ${one.valid ? "" : "invalid"}`.trim();
      strip.append(make("button", { type: "button", class: kind || null, "aria-current": i === this.step ? "step" : null,
        "aria-label": `step ${i}${one.valid ? "" : ", invalid"}, advantage ${short(one.advantage)}`, on: { click: () => this.show(i) } }, String(i)));
    });
    if (episode.steps.length) {
      parts.push(strip, make("p", { class: "hint" }, "Blue: advantage above 0; orange: below 0; struck out: invalid action."));
      parts.push(...this.stepParts(episode.steps[this.step]));
    } else parts.push(make("p", { class: "empty" }, "The episode has no step."));
    pane.replaceChildren(...parts);
    const fresh = pane.querySelector(".fresh");
    if (fresh) fresh.parentElement.scrollTop = fresh.offsetTop - fresh.parentElement.offsetTop - 80;
    if (this.ready) history.replaceState(null, "", `#episodes/${slug(label)}/${episode.id}/${this.step}`);
  }

  stepParts(step) {
    const numbers = make("dl", { class: "numbers" });
    const facts = [["reward", short(step.reward)], ["advantage", short(step.advantage)], ["action", step.valid ? "valid" : "invalid"],
      ["mean log-probability", short(step.logprob)], ["tokens", `${short(step.prompt_tokens)} + ${short(step.response_tokens)}`],
      ["ended by", step.finish === "length" ? "token limit" : step.finish], ["policy version", short(step.version)]];
    for (const [name, value] of facts) numbers.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    const parts = [numbers];
    if (step.images.length) {
      parts.push(make("h4", {}, step.images.length > 1 ? "Images" : "Image"), make("div", { class: "images" },
        ...step.images.map((png, i) => make("img", { src: `data:image/png;base64,${png}`, alt: `image ${i + 1} of the observation` }))));
    }
    if (step.prompt === null) parts.push(make("h4", {}, "Observation (the prompt's text was not recorded)"), make("pre", {}, visible(step.observation)));
    else {
      const prompt = make("pre", { class: "prompt", tabindex: "0" }, visible(step.prompt.slice(0, step.fresh)),
        make("span", step.fresh ? { class: "fresh" } : {}, visible(step.prompt.slice(step.fresh))));
      const size = step.fresh ? `${short(step.prompt.length)} characters, new ones marked` : `${short(step.prompt.length)} characters`;
      parts.push(make("h4", {}, "Prompt", make("small", {}, size)), prompt);
    }
    parts.push(make("h4", {}, "Completion"), make("pre", { class: "completion", tabindex: "0" }, visible(step.response === null ? "(text was not recorded)" : step.response)));
    parts.push(make("h4", {}, "Parsed action"), make("pre", { class: `call${step.valid ? "" : " invalid"}` }, this.callText(step)));
    return parts;
  }

  callText(step) {
    const why = [step.parse_error, step.error].filter((one) => one !== null && one !== undefined).map((one) => `\n→ ${visible(one)}`);
    if (step.action === null) return `no action${[...new Set(why)].join("")}`;
    let calls;
    try {
      calls = JSON.parse(step.action).map((call) => `${call.name}(${JSON.stringify(call.arguments)})`).join("\n");
    } catch { calls = step.action; } // Python writes NaN and Infinity, which JSON does not know
    return visible(calls) + [...new Set(why)].join("");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, pre")) return;
    const box = this.$("episodes").getBoundingClientRect();
    if (box.top > window.innerHeight / 2 || box.bottom < window.innerHeight / 3 || !this.episode) return; // not in view
    const at = this.shown.indexOf(this.episode);
    const moves = {
      ArrowLeft: () => this.show(this.step - 1),
      ArrowRight: () => this.show(this.step + 1),
      ArrowUp: () => this.shown[at - 1] && this.select(this.shown[at - 1], 0),
      ArrowDown: () => this.shown[at + 1] && this.select(this.shown[at + 1], 0),
      "[": () => this.file > 0 && this.open(this.file - 1),
      "]": () => this.file < this.data.files.length - 1 && this.open(this.file + 1),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.ready = true;
    moves[event.key]();
  }
}
