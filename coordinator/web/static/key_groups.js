// Keys by key group as bars, the fullest ones also in words.
import { count, element as el } from "/static/words.js";
export function keyGroups(operator) {
  const groups = operator.key_groups, keys = groups.reduce((sum, each) => sum + each.keys_at_most, 0), most = Math.max(1, ...groups.map((each) => each.keys_at_most));
  const named = (each) => (each.first_key_group === each.last_key_group ? `${each.first_key_group}` : `${each.first_key_group} to ${each.last_key_group}`);
  const fullest = [...groups].sort((a, b) => b.keys_at_most - a.keys_at_most).slice(0, 3).filter((each) => each.keys_at_most);
  const words = fullest.map((each) => `${named(each)}: ${count(each.keys_at_most)} (${Math.round((100 * each.keys_at_most) / keys)} %)`).join(", ");
  const bars = groups.map((each) => {
    const bar = el("i", { title: `${named(each)}: ${count(each.keys_at_most)}` });
    bar.style.height = `${(100 * each.keys_at_most) / most}%`;
    return bar;
  });
  return [el("h3", {}, "By key group"), el("div", { class: "groups", role: "img", "aria-label": `Keys of the key groups 0 to ${operator.max_parallelism - 1}` }, bars),
    el("p", { class: "soft" }, `${count(keys)} keys in the key groups 0 to ${operator.max_parallelism - 1}; the fullest ${words || "–"}`)];
}
