// The entry point: find the data source, then show it.

import { mount } from "./app.js";
import { remoteSource } from "./source.js";
import { embeddedSource } from "./embedded.js";

const source = document.getElementById("regard-data") ? embeddedSource(document) : remoteSource("/api/");
mount(document.getElementById("regard") || document.body, source, { address: true });
