// Opens every view of the page in a real browser, checks each for accessibility, and takes pictures:
//
//   NODE_PATH=node_modules node look.mjs < plan.json > found.json
//
// The plan: {browser, url, pictures, paths: {here: there}, views: [{name, route, expected, press, then}], cancel: {route, expected}}.
// `route` is the part of the address behind "/#/", `expected` a text that is on the view when it is drawn; `press`, if there
// is one, the name of a button that is pressed then, and `then` a text that comes of it; `paths` are
// those of this machine, and what a picture shows in their place. What was found is printed as JSON.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.env.NODE_PATH}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const plan = JSON.parse(readFileSync(0, "utf8"));
const LOOKS = [
  { name: "light", colorScheme: "light", viewport: { width: 1280, height: 860 } },
  { name: "dark", colorScheme: "dark", viewport: { width: 1280, height: 860 } },
  { name: "phone", colorScheme: "light", viewport: { width: 390, height: 844 }, hasTouch: true },
];

const browser = await chromium.launch({ executablePath: plan.browser, args: process.getuid() === 0 ? ["--no-sandbox"] : [] });
const found = { views: [], console: [], requests: [], keyboard: {} };

async function open(look, complains = (line) => found.console.push(line)) {
  // the policy of the page forbids scripts of others, and axe is one: the browser is told to let it in
  const context = await browser.newContext({ ...look, bypassCSP: true, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.on("console", (line) => ["error", "warning"].includes(line.type()) && complains(line.text()));
  page.on("pageerror", (error) => complains(error.message));
  page.on("request", (request) => found.requests.push(new URL(request.url()).host));
  return page;
}

async function show(page, view) {
  await page.goto(`${plan.url}/#/${view.route}`);
  await page.getByText(view.expected).first().waitFor();
  if (!view.press) return;
  for (let tries = 1; ; tries++) { // on a machine that is busy no row may flow at the moment that is looked at
    await page.getByRole("button", { name: view.press }).first().click();
    const comes = page.getByText(view.then).first().waitFor({ timeout: 10_000 });
    if (await comes.then(() => true, (error) => { if (tries === 6) throw error; })) return;
  }
}

async function picture(page, name) {
  await page.evaluate((paths) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (const [here, there] of paths) texts.currentNode.data = texts.currentNode.data.replaceAll(here, there);
  }, Object.entries(plan.paths));
  await page.screenshot({ path: `${plan.pictures}/page-${name}.png` });
}

async function broken(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run());
  return violations.map((each) => `${each.id} (${each.impact}): ${each.help}: ${each.nodes.map((node) => node.html).join(" ")}`);
}

for (const look of LOOKS) {
  const page = await open(look);
  for (const view of plan.views) {
    await show(page, view);
    found.views.push({
      view: view.name,
      look: look.name,
      violations: await broken(page),
      sideways: await page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth),
      trouble: await page.locator("#trouble").isVisible(),
    });
    await picture(page, `${view.name}-${look.name}`);
  }
  await page.context().close();
}

// With the keyboard alone: to the button that cancels, no, and again, yes.
const page = await open(LOOKS[0]);
await show(page, plan.views[0]);
found.first_paint_ms = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
await page.keyboard.press("Tab");
found.keyboard.first = await page.evaluate(() => document.activeElement.textContent);
await show(page, plan.cancel);
const button = page.getByRole("button", { name: "Cancel" });
const dialog = page.getByRole("dialog");
async function press() {
  for (let steps = 0; steps < 60; steps++) {
    if (await button.evaluate((each) => each === document.activeElement)) break;
    await page.keyboard.press("Tab");
  }
  await page.keyboard.press("Enter");
  await dialog.waitFor();
}
await press();
found.question = await broken(page);
await picture(page, "question-light");
await page.keyboard.press("Escape");
await dialog.waitFor({ state: "hidden" });
found.keyboard.after_no = await page.locator(".head .status").textContent();
// Somebody else has pressed the same button, and is asked while the first one says yes.
const other = await open(LOOKS[0], () => {}); // the browser says, too, that it is refused
await show(other, plan.cancel);
await other.getByRole("button", { name: "Cancel" }).click();
await press();
await page.getByRole("button", { name: "Yes" }).focus();
await page.keyboard.press("Enter");
await page.locator(".head .status", { hasText: "CANCELED" }).waitFor(); // a subtask is before the job is
found.keyboard.after_yes = await page.locator(".head .status").textContent();
await other.getByRole("button", { name: "Yes" }).click();
const said = other.locator("#said", { hasText: "cancel was not done" });
await said.waitFor();
await other.locator(".head .status", { hasText: "CANCELED" }).waitFor();
found.second = await said.textContent();
// The server of the page goes away and comes back.
const trouble = other.locator("#trouble");
await other.context().setOffline(true);
await trouble.waitFor();
found.gone = await trouble.textContent();
await other.context().setOffline(false);
await trouble.waitFor({ state: "hidden" });
await page.evaluate(() => document.getElementById("main").append(new Image()));
found.canary = await broken(page);

await browser.close();
found.requests = [...new Set(found.requests)];
console.log(JSON.stringify(found));
