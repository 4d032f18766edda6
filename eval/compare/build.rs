//! Compiles the WiredTiger shim. WiredTiger's C interface consists of structs of function pointers, and only
//! its header defines their layout.

fn main() {
    println!("cargo::rerun-if-changed=shim/wiredtiger.c");
    #[cfg(feature = "wiredtiger")]
    {
        cc::Build::new().file("shim/wiredtiger.c").warnings(true).compile("azekura_wiredtiger_shim");
        println!("cargo::rustc-link-lib=wiredtiger");
    }
}
