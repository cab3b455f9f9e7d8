// Elements of the page, made from texts that are never read as markup; and requests to the server.

export const byId = (id) => document.getElementById(id);

/** Returns a new element. Names that begin with "on" are listeners; false and null leave an attribute out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const unseen = (text) => element("span", { class: "unseen" }, text);

export const counted = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export const shortened = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`);

/** What the server refused: its message, its status, and the present state where it sent one. */
export class Refused extends Error {
  constructor(message, status, state) {
    super(message);
    this.status = status;
    this.state = state;
  }
}

/** Sends a request for the visit with this key; returns the response. */
export async function ask(visit, path, body) {
  const headers = visit ? { "X-Visit": visit } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const request = { method: body === undefined ? "GET" : "POST", headers, body: body && JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    throw new Refused("The server does not answer. Is it still running?", 0);
  }
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Refused(told.error || `The server answered with the status ${response.status}.`, response.status, told.state);
  }
  return response;
}
