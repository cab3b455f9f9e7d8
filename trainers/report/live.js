"use strict";
// Follows a run: asks its server what has changed, and draws that without loading the page anew.

const EVERY = 2000, HIDDEN = 15000, LONGEST = 30000; // milliseconds between two questions
const PATIENCE = 30000; // milliseconds for an answer

class Live {
  constructor() {
    this.browser = null;
    this.wait = EVERY;
    this.$ = (id) => document.getElementById(id);
    PARTS.text = (id) => this.part(id);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.soon(0); });
  }

  async part(id) {
    const [kind, number] = id.split("-"), file = DATA.files[number];
    const answer = await fetch(`${kind}/${encodeURIComponent(file.key)}?v=${file.stamp}`);
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail || `status ${answer.status}`);
    return answer.text();
  }

  async start() {
    this.$("live").hidden = false;
    await this.show(DATA);
    this.soon(EVERY);
  }

  soon(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), wait);
  }

  async get(path) {
    const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (answer.status === 401) location.reload();
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return answer.json();
  }

  async ask() {
    try {
      const now = await this.get("now");
      if (now.version === DATA.version) this.now(now);
      else await this.show(await this.get("state"));
      this.wait = EVERY;
      this.$("live-connection").textContent = `Up to date at ${new Date().toLocaleTimeString()}.`;
    } catch (error) {
      this.wait = Math.min(2 * this.wait, LONGEST);
      this.$("live-connection").textContent = `The server does not answer (${error.message}); the page shows what it said last, and asks again.`;
    }
    this.soon(document.hidden ? HIDDEN : this.wait);
  }

  async show(state) {
    DATA = state;
    this.now(state);
    for (const id of ["results", "curves", "time", "episodes", "config"]) this.$(id).hidden = !state.begun;
    if (!state.begun) return;
    draw();
    const listed = JSON.stringify(state.files);
    if (listed !== this.listed || !this.browser) await this.files(state);
    this.listed = listed;
  }

  // New files of episodes: the newest is shown until a reader has chosen something.
  async files(state) {
    if (!this.browser) {
      this.browser = await episodes();
      if (this.browser && !location.hash.startsWith("#episodes/")) this.browser.ready = false;
      return;
    }
    await this.browser.renew(state);
  }

  now({ begun, activity, alerts, problems }) {
    const dot = (kind) => make("i", { class: kind }), words = { running: "Running", finished: "Finished", interrupted: "Interrupted", failed: "Failed", silent: "No sign of life" };
    const line = this.$("live-state"), progress = this.$("live-progress"), stage = this.$("live-stage");
    progress.hidden = !activity;
    stage.textContent = "";
    const waits = [];
    if (!begun) line.replaceChildren(dot(""), "The run has not written anything yet.");
    else if (!activity) line.replaceChildren(dot(""), "The run does not say what it does (it has not begun its first phase, or is of an older version).");
    else {
      const { state, iteration, iterations, left_s: left, age_s: age, error } = activity;
      const rest = state === "silent" ? ` for ${duration(age)}: it was killed, or its machine is gone` : state === "running" && left !== null ? `, about ${duration(left)} left` : "";
      line.replaceChildren(dot(state), `${words[state] || state}${rest}: iteration ${iteration} of ${iterations} done`);
      progress.max = Math.max(1, iterations);
      progress.value = iteration;
      const counted = activity.total ? ` ${activity.count}/${activity.total} episodes` : "";
      stage.textContent = visible(`${state === "running" ? "Now" : "Last"}: ${activity.stage}${counted} for ${duration(activity.stage_s)}; ${duration(activity.elapsed_s)} since the start; process ${activity.pid} on ${activity.host}`);
      if (error) waits.push(error);
      const several = activity.processes.length > 1;
      activity.processes.forEach((doing, rank) => (several || doing.includes("waits for")) && waits.push(several ? `rank ${rank}: ${doing}` : doing));
    }
    this.$("live-waits").replaceChildren(...waits.map((text) => make("li", {}, visible(text))));
    this.$("live-problems").textContent = visible(problems.join("\n"));
    const box = this.$("live-alerts");
    box.hidden = !alerts.length;
    if (!alerts.length) return;
    box.querySelector("summary").textContent = `${alerts.length} ${alerts.length === 1 ? "alert" : "alerts"}; the last at ${alerts[0].time}: ${visible(alerts[0].text)}`;
    box.querySelector("ul").replaceChildren(...alerts.map((one) => make("li", { class: one.level === "warning" ? null : "problem" }, `${one.time} ${visible(one.text)}`)));
  }
}
