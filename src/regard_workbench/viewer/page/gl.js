// Tiles drawn by WebGL2: one byte per weight in GPU memory, colours looked up while drawing.

const VERTEX = `#version 300 es
in vec2 corner;
uniform vec4 place;
uniform vec4 part;
out vec2 texel;
void main() {
  texel = part.xy + corner * part.zw;
  gl_Position = vec4(place.xy + corner * place.zw, 0.0, 1.0);
}`;

const LOOKUP = `#version 300 es
precision highp float;
uniform sampler2D codes;
uniform sampler2D colors;
uniform float side;
uniform float cell;
uniform vec3 paper;
in vec2 texel;
out vec4 color;
vec4 looked() {
  float code = texture(codes, texel / side).r;
  return texture(colors, vec2((code * 255.0 + 0.5) / 256.0, 0.5));
}`;

const PLAIN = `${LOOKUP}
void main() {
  color = looked();
}`;

// Large cells get a thin gap between them. A separate shader program: a software renderer would spend half of its time
// on the check whether there is a gap.
const RULED = `${LOOKUP}
void main() {
  vec2 within = fract(texel) * cell;
  float line = 1.0 - step(1.0, min(within.x, within.y));
  color = mix(looked(), vec4(paper, 1.0), 0.55 * line);
}`;
const RULED_FROM = 14;

/** A painter for a canvas, or null without WebGL2. `onLost` is called when the GPU context is lost. */
export function glPainter(canvas, side, onLost) {
  const gl = canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false, stencil: false, preserveDrawingBuffer: false });
  if (!gl) return null;
  const free = [];
  let plain = null;
  let ruled = null;
  let used = null;
  let palette = null;

  const prepare = () => {
    free.length = 0;
    plain = linked(gl, PLAIN, side);
    ruled = linked(gl, RULED, side);
    used = null;
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array([0, 0, 1, 0, 0, 1, 1, 1]), gl.STATIC_DRAW);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 2, gl.FLOAT, false, 0, 0);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    palette = made(gl, gl.RGBA8, 256, 1);
  };
  prepare();
  canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  canvas.addEventListener("webglcontextrestored", () => {
    prepare();
    onLost();
  });

  return {
    kind: "webgl2",
    canvas,
    /** 256 RGBA colours, and which of them is the background. */
    colors(table, empty) {
      gl.activeTexture(gl.TEXTURE1);
      gl.bindTexture(gl.TEXTURE_2D, palette);
      gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, 256, 1, gl.RGBA, gl.UNSIGNED_BYTE, table);
      gl.activeTexture(gl.TEXTURE0);
      gl.useProgram(ruled.program);
      gl.uniform3f(ruled.paper, table[4 * empty] / 255, table[4 * empty + 1] / 255, table[4 * empty + 2] / 255);
      used = ruled;
    },
    upload(codes, width, height) {
      const texture = free.pop() || made(gl, gl.R8, side, side);
      gl.activeTexture(gl.TEXTURE0);
      gl.bindTexture(gl.TEXTURE_2D, texture);
      gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, width, height, gl.RED, gl.UNSIGNED_BYTE, codes);
      return texture;
    },
    release(texture) {
      free.push(texture);
    },
    begin(red, green, blue) {
      gl.viewport(0, 0, canvas.width, canvas.height);
      gl.clearColor(red / 255, green / 255, blue / 255, 1);
      gl.clear(gl.COLOR_BUFFER_BIT);
    },
    /** Texels (u, v, du, dv) of a tile to device pixels (x, y, w, h), counted from the upper left. */
    draw(texture, u, v, du, dv, x, y, w, h) {
      const program = w / du >= RULED_FROM ? ruled : plain;
      if (program !== used) {
        gl.useProgram(program.program);
        used = program;
      }
      gl.bindTexture(gl.TEXTURE_2D, texture);
      gl.uniform4f(program.part, u, v, du, dv);
      gl.uniform4f(program.place, (2 * x) / canvas.width - 1, 1 - (2 * y) / canvas.height, (2 * w) / canvas.width, (-2 * h) / canvas.height);
      if (program === ruled) gl.uniform1f(program.cell, w / du);
      gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
    },
    /** A rectangle of one colour, cut to the canvas. */
    fill(x, y, w, h, [red, green, blue]) {
      const left = Math.max(0, Math.round(x));
      const top = Math.max(0, Math.round(y));
      const wide = Math.min(canvas.width, Math.round(x + w)) - left;
      const tall = Math.min(canvas.height, Math.round(y + h)) - top;
      if (wide <= 0 || tall <= 0) return;
      gl.enable(gl.SCISSOR_TEST);
      gl.scissor(left, canvas.height - top - tall, wide, tall);
      gl.clearColor(red / 255, green / 255, blue / 255, 1);
      gl.clear(gl.COLOR_BUFFER_BIT);
      gl.disable(gl.SCISSOR_TEST);
    },
    destroy() {
      // Browsers allow few contexts at a time; release it without waiting for garbage collection.
      const extension = gl.getExtension("WEBGL_lose_context");
      if (extension) extension.loseContext();
    },
  };
}

function made(gl, format, width, height) {
  const texture = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, texture);
  gl.texStorage2D(gl.TEXTURE_2D, 1, format, width, height);
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
  return texture;
}

function linked(gl, fragment, side) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.bindAttribLocation(program, 0, "corner");
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) throw new Error(`WebGL: ${gl.getProgramInfoLog(program)}`);
  const at = (name) => gl.getUniformLocation(program, name);
  gl.useProgram(program);
  gl.uniform1i(at("codes"), 0);
  gl.uniform1i(at("colors"), 1);
  gl.uniform1f(at("side"), side);
  return { program, place: at("place"), part: at("part"), cell: at("cell"), paper: at("paper") };
}
