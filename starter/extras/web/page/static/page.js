// Refreshes what a view shows while somebody looks at it, and holds still while they are elsewhere or in the midst of it.
"use strict";

(() => {
  const SECONDS = 5;
  const find = () => document.getElementById("live");
  const isAwake = () => document.visibilityState === "visible" && document.hasFocus();
  const isInUse = (live) => live.contains(document.activeElement) || !document.getSelection().isCollapsed;

  const say = (text) => {
    const line = document.getElementById("watch");
    if (line && line.textContent !== text) line.textContent = text;
  };

  const refresh = () => {
    const live = find();
    if (!live) return;
    if (!isAwake()) say("paused while you are elsewhere");
    else if (isInUse(live)) say("holds still while you use it");
    else window.htmx.trigger(live, "refresh");
  };

  if (find()) {
    say(`refreshes every ${SECONDS} s`);
    setInterval(refresh, SECONDS * 1000);
    window.addEventListener("focus", refresh);
    window.addEventListener("blur", refresh);
    document.addEventListener("visibilitychange", refresh);
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    // an answer without the part that is to be replaced is the sign-in form
    if (event.detail.xhr.responseText.includes('id="live"')) return;
    event.detail.shouldSwap = false;
    say("signed out; reload to sign in");
  });
  document.addEventListener("htmx:afterSwap", () => say(`refreshes every ${SECONDS} s`));
  for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, () => say("no answer; this is what was known before"));
  }
})();
