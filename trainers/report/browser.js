"use strict";
// The episode browser: filters, list, the chosen episode; the page's address holds all of it.

function slug(label) { return label.replace(/[^\p{L}\p{N}]+/gu, "-"); }

const SCOPES = { iterations: "all iterations", evaluations: "all evaluations", all: "everything" };
const FIELDS = { outcome: "outcome", type: "type", invalid: "invalid", reward: "reward", min: "steps-min", max: "steps-max", text: "search", method: "method" };
const DELAY = 120; // milliseconds after a key, before a search

class Browser {
  constructor(data) {
    this.data = data;
    this.store = new Store(data);
    this.scope = null;
    this.all = null;
    this.shown = [];
    this.episode = null;
    this.step = 0;
    this.turn = 0; // counts what was asked to be shown: of two that overlap, the later one stays
    this.$ = (id) => document.getElementById(id);
    this.listing = new EpisodeList(this.$("list"), (episode) => { this.ready = true; this.select(episode, 0); }, (episode) => this.described(episode));
    this.graph = new GroupGraph(this.$("graph"), this);
    this.scopes();
    for (const [stage, meaning] of Object.entries(data.refusals)) this.$("invalid").append(make("option", { value: stage }, `${stage}: ${meaning}`));
    this.methods();
    this.$("iteration").addEventListener("change", () => { this.ready = true; this.open(this.$("iteration").value); });
    for (const id of ["outcome", "type", "invalid", "reward", "steps-min", "steps-max"]) this.$(id).addEventListener("input", () => { this.ready = true; this.filter(); });
    this.$("search").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.$("list").ariaBusy = "true"; // it is behind the words until they have been searched for
      this.timer = setTimeout(() => { this.ready = true; this.filter(); }, DELAY);
    });
    this.$("method").addEventListener("input", () => { this.ready = true; this.show(this.step); });
    this.$("filters").addEventListener("submit", (event) => event.preventDefault());
    this.$("filters").addEventListener("reset", () => setTimeout(() => { this.ready = true; this.$("iteration").value = this.scope; this.filter(); }));
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.follow());
  }

  // The choices of files: those that have come since the last call are added.
  scopes() {
    const select = this.$("iteration"), { files } = this.data, chosen = select.value;
    const kinds = new Set(files.map((file) => file.kind));
    const options = [];
    if (files.length > 1) {
      if (kinds.has("iteration")) options.push(["iterations", SCOPES.iterations]);
      if (kinds.has("evaluation")) options.push(["evaluations", SCOPES.evaluations]);
      if (kinds.size > 1) options.push(["all", SCOPES.all]);
    }
    files.forEach((file, i) => options.push([String(i), `${file.label} (${file.solved}/${file.episodes} solved${file.failed ? `, ${file.failed} failed` : ""})`]));
    select.replaceChildren(...options.map(([value, label]) => make("option", { value }, label)));
    if (chosen) select.value = chosen;
  }

  // Takes over a later state of the run. What a reader has chosen stays; otherwise the newest file is shown.
  async renew(data) {
    const key = (file) => `${file.key} ${file.stamp}`, before = this.data.files, chosen = this.episode;
    const kept = this.scope in SCOPES ? this.scope : before[Number(this.scope)]?.key, newest = Number(this.scope) === before.length - 1;
    const stays = before.every((file, i) => data.files[i] && key(file) === key(data.files[i]));
    const label = chosen ? before[chosen.file].label : null;
    this.data = data;
    if (stays) this.store.data = data; // files were added at the end
    else this.store = new Store(data);
    this.$("iteration").value = "";
    this.scopes();
    if (!data.files.length) return;
    const place = kept in SCOPES ? kept : data.files.findIndex((file) => file.key === kept);
    const next = !this.ready && newest ? data.files.length - 1 : place === -1 ? data.files.length - 1 : place;
    if (stays && String(next) === this.scope && !(next in SCOPES)) {
      this.$("iteration").value = this.scope;
      return;
    }
    this.stale = true;
    const file = label === null ? -1 : data.files.findIndex((one) => one.label === label);
    if (file >= 0 && (next in SCOPES || next === file)) await this.open(String(next), file, chosen.id, this.step);
    else await this.open(String(next), -1, null);
  }

  methods() {
    const select = this.$("method");
    for (const { name, estimator, options, same } of this.data.methods) {
      const own = name === "own";
      if (!own) select.append(make("option", { value: name, title: options }, [name, ...same].join(" = ")));
      else select.firstElementChild.textContent = `as trained (${estimator})`;
    }
    if (this.data.methods.length) select.append(make("option", { value: "*" }, "every method"));
    select.closest("label").hidden = !this.data.methods.length;
    if (this.data.methods_problem) this.$("filters").after(make("p", { class: "hint" }, `Advantages under other methods: ${visible(this.data.methods_problem)}`));
  }

  filesOf(scope) {
    if (!(scope in SCOPES)) return [Number(scope)];
    return this.data.files.map((file, i) => [file.kind, i]).filter(([kind]) => scope === "all" || `${kind}s` === scope).map(([, i]) => i);
  }

  // Addresses are #episodes/<label>/<episode id>/<step>?<filters>, e.g. #episodes/iteration-3/17/2?outcome=unsolved&in=iterations.
  async follow() {
    const hash = location.hash.slice(1);
    if (hash === this.written) return true;
    const [path, query = ""] = hash.split(/\?(.*)/s);
    let section, label, id, step;
    try {
      [section, label, id, step] = decodeURIComponent(path).split("/");
    } catch { return false; } // not an address of ours
    if (section !== "episodes" || label === undefined) return false;
    const file = this.data.files.findIndex((one) => slug(one.label) === label), given = new URLSearchParams(query);
    const wide = given.get("in") in SCOPES && this.filesOf(given.get("in")).length ? given.get("in") : null;
    if (file < 0 && !wide) return false;
    for (const [name, field] of Object.entries(FIELDS)) if (name !== "type") this.$(field).value = given.get(name) || "";
    await this.open(wide || String(file), file, id ? Number(id) : null, Number(step || 0), given.get("type") || "");
    this.$("episodes").scrollIntoView({ behavior: "instant" });
    return true;
  }

  write() {
    if (!this.ready) return;
    const query = new URLSearchParams();
    if (this.scope in SCOPES) query.set("in", this.scope);
    for (const [name, field] of Object.entries(FIELDS)) if (this.$(field).value) query.set(name, this.$(field).value);
    const where = this.episode ? `${slug(this.data.files[this.episode.file].label)}/${this.episode.id}/${this.step}` : this.scope in SCOPES ? "" : slug(this.data.files[Number(this.scope)].label);
    const text = query.toString();
    history.replaceState(null, "", `#episodes/${where}${text ? `?${text}` : ""}`);
    this.written = location.hash.slice(1);
  }

  async open(scope, file = null, id = null, step = 0, type = this.$("type").value) {
    this.$("iteration").value = scope;
    if (scope !== this.scope || this.stale) {
      this.scope = scope;
      this.stale = false;
      const files = this.filesOf(scope), parts = [];
      for (const one of files) {
        this.$("count").textContent = files.length > 1 ? `unpacking ${parts.length + 1} of ${files.length} …` : "unpacking …";
        try {
          parts.push(await this.store.load(one));
        } catch (error) {
          this.$("count").textContent = `These episodes cannot be shown by this browser (${error}).`;
          return;
        }
        if (this.scope !== scope) return; // another one was chosen meanwhile
      }
      this.all = parts.flat();
      this.counted(type);
    } else if (this.$("type").value !== type) this.$("type").value = type;
    this.filter(file === null && this.episode ? this.episode.file : file, id === null && file === null && this.episode ? this.episode.id : id, step);
  }

  // Numbers of episodes beside the choices of the filters.
  counted(type) {
    const count = (key) => {
      const found = new Map();
      for (const episode of this.all) for (const one of key(episode)) found.set(one, (found.get(one) || 0) + 1);
      return found;
    };
    const types = count((episode) => [episode.type]);
    const names = [...types.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    this.$("type").replaceChildren(make("option", { value: "" }, "all"), ...names.map((one) => make("option", { value: one }, `${visible(one)} (${types.get(one)})`)));
    this.$("type").value = types.has(type) ? type : "";
    const known = { outcome: count((episode) => [outcomeOf(episode)]), invalid: count((episode) => (episode.refusals.size ? ["any", ...episode.refusals] : ["none"])) };
    for (const [id, found] of Object.entries(known)) {
      for (const option of this.$(id).options) {
        if (!option.value) continue;
        option.dataset.label ??= option.textContent;
        option.textContent = `${option.dataset.label} (${found.get(option.value) || 0})`;
      }
    }
  }

  criteria() {
    const number = (name, otherwise) => (this.$(name).value === "" ? otherwise : Number(this.$(name).value));
    return { outcome: this.$("outcome").value, type: this.$("type").value, invalid: this.$("invalid").value, text: this.$("search").value.toLowerCase(),
      reward: number("reward", -Infinity), low: number("steps-min", 0), high: number("steps-max", Infinity) };
  }

  filter(file = this.episode ? this.episode.file : null, id = this.episode ? this.episode.id : null, step = this.step) {
    if (!this.all) return;
    const criteria = this.criteria();
    this.shown = this.all.filter((episode) => this.store.fits(episode, criteria));
    this.listing.show(this.shown);
    this.$("list").ariaBusy = "false";
    const solved = this.shown.filter((episode) => outcomeOf(episode) === "solved").length;
    const failed = this.shown.filter((episode) => outcomeOf(episode) === "failed").length;
    this.$("count").textContent = `${this.shown.length} of ${this.all.length} episodes: ${solved} solved, ${this.shown.length - solved - failed} not solved${failed ? `, ${failed} failed` : ""}`;
    const same = (episode) => episode.id === id && (file === null || file < 0 || episode.file === file);
    const mixed = (episode) => episode.members.rewards.size > 1; // a group that teaches is worth more than the first one
    const chosen = this.shown.find(same) || (id === null && this.shown.find(mixed)) || this.shown[0] || null;
    this.select(chosen, chosen && same(chosen) ? step : 0);
  }

  described(episode) {
    const parts = [];
    if (this.scope in SCOPES) parts.push(this.data.files[episode.file].short);
    if (episode.members.n === 1) parts.push(visible(episode.type));
    return [...parts, `reward ${short(episode.reward)}`].join(", ");
  }

  select(episode, step) {
    this.episode = episode;
    this.listing.select(episode);
    return this.show(step);
  }

  async show(step) {
    const pane = this.$("episode"), episode = this.episode, turn = ++this.turn;
    if (!episode) {
      pane.replaceChildren(make("p", { class: "empty" }, "No episode fits the filters."));
      pane.ariaBusy = "false";
      this.write();
      return;
    }
    const steps = this.store.steps(episode);
    this.step = Math.max(0, Math.min(step, steps.length - 1));
    this.write();
    pane.ariaBusy = "true"; // the address is ahead of the pane until the advantages are unpacked
    const method = this.$("method").value, credited = method ? await this.store.credited(episode.file).catch((error) => error) : null;
    if (turn !== this.turn) return; // something else was chosen meanwhile
    const label = this.data.files[episode.file].label;
    const [, word] = OUTCOMES[outcomeOf(episode)];
    const parts = [
      make("h3", {}, `Episode ${episode.id}, ${label}`),
      make("p", { class: "meta" }, make("b", { class: outcomeOf(episode) }, word), `, ${episode.end}; reward `, make("b", {}, short(episode.reward)),
        `, score ${short(episode.score)}; ${visible(`${episode.env}, ${episode.type}, ${episode.task_id}, split ${episode.split}, group ${episode.group}`)}`),
    ];
    if (episode.error !== null) parts.push(make("p", { class: "problem" }, `Failed, not trained on: ${visible(episode.error)}`));
    const strip = make("div", { class: "strip", role: "group", "aria-label": "Steps" });
    steps.forEach((one, i) => {
      const kind = `${sign(one.advantage)} ${one.valid ? "" : "invalid"}`.trim();
      strip.append(make("button", { type: "button", class: kind || null, "aria-current": i === this.step ? "step" : null,
        "aria-label": `step ${i}${one.valid ? "" : ", invalid"}, advantage ${short(one.advantage)}`, on: { click: () => { this.ready = true; this.show(i); } } }, String(i)));
    });
    if (steps.length) {
      parts.push(strip, make("p", { class: "hint" }, "Blue: advantage above 0; orange: below 0; struck out: invalid action."));
      if (method) parts.push(...this.compared(method, credited, episode, steps));
      parts.push(...this.stepParts(steps[this.step]));
      if (this.step === steps.length - 1 && episode.last) parts.push(make("h4", {}, "The environment's last answer"), make("pre", { class: "answer" }, visible(episode.last)));
    } else parts.push(make("p", { class: "empty" }, "The episode has no step."));
    pane.replaceChildren(...parts);
    pane.ariaBusy = "false";
    const fresh = pane.querySelector(".fresh");
    if (fresh) fresh.parentElement.scrollTop = fresh.offsetTop - fresh.parentElement.offsetTop - 80;
    const current = pane.querySelector("table.advantages [aria-current]"), box = current && current.closest(".scroll");
    if (box) box.scrollLeft = current.offsetLeft - box.clientWidth / 2;
    await this.graph.draw();
  }

  // The advantages of an episode's steps under other methods, beside those that it was trained with.
  compared(method, credited, episode, steps) {
    if (credited instanceof Error) return [make("p", { class: "problem" }, `Advantages cannot be shown (${visible(credited.message)}).`)];
    if (!credited) return [make("p", { class: "hint" }, "Episodes of an evaluation are not trained on: they have no advantages.")];
    const asked = this.data.methods.map((one, i) => ({ ...one, ...credited[i] })).filter((one) => method === "*" || one.name === method || one.name === "own");
    const trained = steps.some((one) => one.advantage !== null);
    const rows = trained ? [{ title: "trained with", values: steps.map((one) => one.advantage) }] : [];
    const missing = [];
    for (const one of asked) {
      if (one.name === "own" && trained && !one.lacks) continue; // equal to what was saved
      const settings = [one.options && `settings ${one.options}`, `rewards: ${one.rewards}`].filter(Boolean).join("; ");
      if (one.lacks) missing.push([one.name, one.lacks]);
      else rows.push({ title: one.name === "own" ? `own (${one.estimator})` : [one.name, ...one.same].join(" = "), note: one.per === "token" ? "mean of tokens" : "", settings, values: one.values[episode.place] });
    }
    const head = make("tr", {}, make("th", { scope: "col" }, "advantage"), ...steps.map((_, i) => make("th", { scope: "col", "aria-current": i === this.step ? "step" : null }, String(i))));
    const body = rows.map((row) => make("tr", {}, make("th", { scope: "row", title: row.settings || null }, visible(row.title), row.note ? make("small", {}, ` ${row.note}`) : null),
      ...row.values.map((value, i) => make("td", { class: `${sign(value)}${i === this.step ? " current" : ""}` }, value === null ? "–" : value.toFixed(Math.abs(value) < 10 ? 2 : 1)))));
    const parts = [];
    if (rows.length) parts.push(make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Advantages by method" }, make("table", { class: "advantages" }, make("thead", {}, head), make("tbody", {}, ...body))));
    const reasons = new Set(missing.map(([, why]) => why));
    if (missing.length > 1 && reasons.size === 1) parts.push(make("p", { class: "problem uncredited" }, `Not computed: ${visible([...reasons][0])}.`));
    else if (missing.length) parts.push(make("details", { open: method === "*" ? null : "" }, make("summary", {}, `Not computed: ${missing.map(([name]) => name).join(", ")}`),
      make("ul", {}, ...missing.map(([name, why]) => make("li", {}, make("b", {}, name), ` ${visible(why)}`)))));
    const one = asked.find((entry) => entry.name === method);
    if (one) parts.push(make("p", { class: "hint" }, `${one.name}: estimator ${one.estimator}${one.options ? ` with ${one.options}` : ""}; rewards: ${one.rewards}.`));
    return parts;
  }

  stepParts(step) {
    const numbers = make("dl", { class: "numbers" });
    const facts = [["reward", short(step.reward)], ["advantage", short(step.advantage)],
      ["action", step.valid ? "valid" : `invalid: ${this.data.refusals[step.refusal] || step.refusal}`],
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
    return callsOf(step.action) + [...new Set(why)].join("");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target === this.$("search")) this.$("list").focus();
    if (event.target.closest("input, select, textarea, pre")) return;
    const box = this.$("episodes").getBoundingClientRect();
    if (box.top > window.innerHeight / 2 || box.bottom < window.innerHeight / 3) return; // not in view
    const at = this.shown.indexOf(this.episode), file = this.episode ? this.episode.file : Number(this.scope) || 0;
    const go = (place) => this.shown[place] && this.select(this.shown[place], 0);
    const moves = {
      ArrowLeft: () => this.episode && this.show(this.step - 1),
      ArrowRight: () => this.episode && this.show(this.step + 1),
      ArrowUp: () => go(at - 1),
      ArrowDown: () => go(at + 1),
      Home: () => go(0),
      End: () => go(this.shown.length - 1),
      "/": () => this.$("search").focus(),
      "[": () => file > 0 && this.open(String(file - 1), file - 1),
      "]": () => file < this.data.files.length - 1 && this.open(String(file + 1), file + 1),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.ready = true;
    moves[event.key]();
  }
}

function sign(advantage) { return advantage > 0 ? "good" : advantage < 0 ? "bad" : ""; }
