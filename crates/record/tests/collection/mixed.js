// Small programs with one bottleneck each: `mixed SCENE`.
//
// `digest`: the threads of the pool compute. `timers`: an event loop whose tasks sleep. `workers`: a lock
// made of `Atomics.wait`.
const { Worker, isMainThread, workerData } = require('worker_threads');

function digest() {
    const crypto = require('crypto');
    for (let i = 0; i < 16; i++) crypto.pbkdf2('secret', 'salt' + i, 300000, 32, 'sha256', () => {});
}

function timers() {
    let left = 80;
    const timer = setInterval(() => { if (--left === 0) clearInterval(timer); }, 10);
}

function turn(words) {
    for (let i = 0; i < 60; i++) {
        while (Atomics.exchange(words, 0, 2) !== 0) Atomics.wait(words, 0, 2);
        Atomics.wait(words, 1, 0, 2);
        Atomics.store(words, 0, 0);
        Atomics.notify(words, 0, 1);
    }
}

function workers() {
    const words = new Int32Array(new SharedArrayBuffer(8));
    for (let i = 0; i < 4; i++) new Worker(__filename, { workerData: words });
}

if (!isMainThread) turn(workerData);
else ({ digest, timers, workers })[process.argv[2]]();
