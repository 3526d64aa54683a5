/** The login form, for servers that require logins. */

import { post } from "../api.js";
import { h } from "../dom.js";

export function login(entered) {
  const problem = h("p.problem.failed", { role: "alert", hidden: true });
  const user = h("input", { id: "user", name: "user", required: true, autocomplete: "username" });
  const password = h("input", { id: "password", name: "password", type: "password", required: true, autocomplete: "current-password" });
  const submit = h("button.primary", { type: "submit" }, "Log in");
  return h("form.panel.login", {
    "aria-label": "Log in",
    onsubmit: async (event) => {
      event.preventDefault();
      submit.disabled = true;
      try {
        await post("/login", { user: user.value, password: password.value });
        entered();
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
        password.select();
      } finally {
        submit.disabled = false;
      }
    },
  },
  h("h1", h("img", { src: "icon.svg", alt: "", width: 26, height: 26 }), "Nexo"),
  h("div.field", h("label", { for: "user" }, "User"), user),
  h("div.field", h("label", { for: "password" }, "Password"), password),
  problem, submit);
}
