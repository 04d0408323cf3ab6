// The order and groups in which the overview shows heads.

/** Groups of heads: `{label, note, title, part, heads: [[site, head]], captions(site, head)}`; `part` names a new part of the model. */
export function arrange(sort, overview, facts, scene) {
  if (sort === "layer") return byLayer(overview, scene);
  const order = facts.order[sort];
  const known = new Set(overview.heads.map(([site, head]) => `${site} ${head}`));
  const heads = (order || overview.heads).filter(([site, head]) => known.has(`${site} ${head}`));
  if (sort === "entropy") return byEntropy(order ? heads : sorted(heads, facts), facts);
  return grouped(sort, heads, facts);
}

/** A short name of a head: layer and head, counted from 0. */
function shortName(site, head) {
  return `${site}.${head}`;
}

function byLayer(overview, scene) {
  const groups = new Map();
  const parts = new Set(scene.sites.map((site) => site.group || ""));
  let part = null;
  for (const [site, head] of overview.heads) {
    if (!groups.has(site)) {
      const facts = scene.sites[site];
      groups.set(site, { label: facts.label || facts.name, title: facts.name, part: parts.size > 1 && facts.group !== part ? facts.group : null, heads: [], captions: null });
      part = facts.group;
    }
    groups.get(site).heads.push([site, head]);
  }
  return [...groups.values()];
}

function byEntropy(heads, facts) {
  const captions = (site, head) => {
    const fact = facts.of(site, head);
    return fact && Number.isFinite(fact.entropy) ? `${shortName(site, head)} · ${fact.entropy.toFixed(2)}` : shortName(site, head);
  };
  return [{ label: "Sharpest first", note: "mean entropy of the rows, in nats", heads, captions }];
}

function sorted(heads, facts) {
  const entropy = ([site, head]) => (facts.of(site, head) || { entropy: Infinity }).entropy;
  return [...heads].sort((a, b) => entropy(a) - entropy(b));
}

function grouped(sort, heads, facts) {
  const groups = new Map();
  for (const [site, head] of heads) {
    const fact = facts.of(site, head) || {};
    const name = sort === "pattern" ? fact.pattern || "" : String(fact.cluster ?? "");
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push([site, head]);
  }
  // Heads without a named pattern come last.
  const names = [...groups.keys()].sort((a, b) => (a === "") - (b === ""));
  return names.map((name) => {
    const members = groups.get(name);
    const given = sort === "cluster" ? (facts.groups || [])[Number(name)] || `group ${name}` : name;
    const label = given ? given[0].toUpperCase() + given.slice(1) : "No named pattern";
    const captions = (site, head) => {
      const score = ((facts.of(site, head) || {}).scores || {})[name];
      return sort === "pattern" && Number.isFinite(score) ? `${shortName(site, head)} · ${score.toFixed(2)}` : shortName(site, head);
    };
    return { label, note: `${members.length} ${members.length === 1 ? "head" : "heads"}`, heads: members, captions };
  });
}
