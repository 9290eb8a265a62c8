"""Places to execute programs: Wasm with two back-ends, and this process. Each implements `runtime.sandbox.Sandbox`."""
