// The page's beginning: find the numbers, then show them.

import { mount } from "./app.js";
import { remoteSource } from "./source.js";
import { embeddedSource } from "./kept.js";

const source = document.getElementById("regard-data") ? embeddedSource(document) : remoteSource("/api/");
mount(document.getElementById("regard") || document.body, source, { address: true });
