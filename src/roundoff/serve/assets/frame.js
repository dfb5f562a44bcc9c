// The page of a run in its frame: when the run has changed, the new page is loaded below the old one and then replaces it.
"use strict";

(() => {
  const MAX_WAITS = 200;
  const MAX_PAUSE = 300000;
  const RARELY = 5; // a run that has ended is polled this many times less often
  const byId = (name) => document.getElementById(name);
  const frames = byId("frames");
  const names = [...document.querySelectorAll(".watched")].map((each) => each.value);
  const pause = 1000 * Number(frames.dataset.pollSeconds);
  const follow = byId("follow");
  const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
  let frame = frames.querySelector("iframe");
  let isGoingOn = true;
  let nextLoad = 0;

  async function fetchStates() {
    const answer = await fetch(`/api/changes?${new URLSearchParams(names.map((name) => ["run", name]))}`);
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.error);
    return names.map((name) => content.runs[name]);
  }

  function say(run) {
    const state = byId("state");
    state.className = `state ${run.state}`;
    state.textContent = run.state;
    state.title = run.detail;
    const loss = run.last_loss === null ? "" : `, loss ${typeof run.last_loss === "number" ? Number(run.last_loss.toPrecision(4)) : run.last_loss}`;
    byId("live").textContent = `${run.num_steps} steps${loss}`;
  }

  // Charts are drawn when they scroll into view: wait for those that are visible, so that the new page does not flicker.
  async function waitForCharts(page) {
    const height = page.defaultView.innerHeight;
    const isSeen = (place) => place.getBoundingClientRect().top < height && place.getBoundingClientRect().bottom > 0;
    for (let nth = 0; nth < MAX_WAITS; nth += 1) {
      const missing = [...page.querySelectorAll(".plot")].some((place) => isSeen(place) && !place.querySelector(".main-svg"));
      if (!missing) return;
      await wait(50);
    }
  }

  async function load(stamp) {
    const fresh = document.createElement("iframe");
    fresh.title = frame.title;
    fresh.className = "below";
    fresh.dataset.stamp = stamp;
    fresh.src = frames.dataset.source;
    const isLoaded = new Promise((resolve) => fresh.addEventListener("load", resolve, { once: true }));
    frames.append(fresh);
    await isLoaded;
    reading.give(fresh.contentDocument, reading.take(frame.contentDocument));
    await waitForCharts(fresh.contentDocument);
    const now = reading.take(frame.contentDocument); // the reader may have scrolled or typed in the meantime
    reading.give(fresh.contentDocument, now);
    reading.giveZoom(fresh.contentDocument, now);
    const hadFocus = document.activeElement === frame;
    fresh.className = "";
    frame.remove();
    frame = fresh;
    if (hadFocus) reading.giveFocus(frame, now);
  }

  async function look() {
    const runs = await fetchStates();
    say(runs[0]);
    isGoingOn = runs.some((run) => ["running", "silent", "hanging"].includes(run.state));
    const stamp = runs.map((run) => run.stamp).join("-");
    const began = Date.now();
    if (stamp === frame.dataset.stamp || !follow.checked || began < nextLoad) return;
    await load(stamp);
    // A page that takes long to make is loaded less often, so that making it does not slow down the training.
    nextLoad = Date.now() + Math.min(MAX_PAUSE, 5 * (Date.now() - began));
  }

  async function keepLooking() {
    for (let nth = 1; ; nth += 1) {
      if (!document.hidden && (isGoingOn || nth % RARELY === 0)) {
        try {
          await look();
        } catch (error) {
          byId("live").textContent = `The server does not answer (${error.message}). This is the last known state.`;
        }
      }
      await wait(pause);
    }
  }

  // The fragment of the URL names a section of the page inside; the frame does not see it by itself.
  frame.addEventListener("load", () => {
    const place = frame.contentDocument.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (place) place.scrollIntoView();
  });
  follow.closest("label").hidden = false;
  keepLooking();
})();
