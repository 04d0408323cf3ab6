// Which layers and heads each model has, and the message where one is missing.

import { SourceError } from "./source.js";

/** How many heads a variant has at a site; 0 where it lacks the site. */
export function headCount(site, variant) {
  return site.headsOf ? (site.headsOf[variant] ?? site.heads) : site.heads;
}

/** The name of a site in a variant: its module path. */
export function siteName(site, variant) {
  return (site.namesOf && site.namesOf[variant]) || site.name;
}

/** Why a variant cannot show a head; "" where it can. */
export function absence(scene, variant, site, head) {
  const facts = scene.sites[site];
  const name = (scene.variants[variant] || {}).name;
  const count = facts ? headCount(facts, variant) : 1;
  if (!count) return `${name} has no ${facts.label || facts.name}.`;
  return head < count ? "" : `${name} has no head ${head} in ${facts.label || facts.name}; its heads are 0 to ${count - 1}.`;
}

/** The labels of the sites that `variant` has and `other` lacks. */
export function sitesOnlyIn(scene, variant, other) {
  return scene.sites.filter((site) => headCount(site, variant) && !headCount(site, other)).map((site) => site.label || site.name);
}

/** A source that rejects requests for a head that the variant lacks, with a message. */
export function checked(source, scene) {
  const guard = (ask) => (given) => {
    const asked = [given.variant || 0, given.minus].filter((variant) => variant !== null && variant !== undefined);
    const why = asked.map((variant) => absence(scene, variant, given.site, given.head)).find(Boolean);
    return why ? Promise.reject(new SourceError(why, 404)) : ask(given);
  };
  return { ...source, tile: guard(source.tile), row: guard(source.row), column: guard(source.column), top: guard(source.top) };
}
