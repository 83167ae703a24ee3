// Loaded before the page is drawn, so that a chosen theme does not flash.
"use strict";
(() => {
  const NAMES = ["auto", "light", "dark"];
  const stored = () => {
    try {
      return localStorage.getItem("firelane.theme");
    } catch {
      return null; // storage is forbidden: the choice lasts as long as the page
    }
  };
  const apply = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
  };
  let name = NAMES.includes(stored()) ? stored() : "auto";
  apply(name);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = `Theme: ${name}`; };
    label();
    button.addEventListener("click", () => {
      name = NAMES[(NAMES.indexOf(name) + 1) % NAMES.length];
      apply(name);
      label();
      try {
        localStorage.setItem("firelane.theme", name);
      } catch { /* see above */ }
    });
  });
})();
