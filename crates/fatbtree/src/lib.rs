//! Fat-Btree.
#![forbid(unsafe_code)]
mod error;
pub mod frame;
mod id;
mod index;
mod key;
mod leaf;
mod lock_service;
mod message;
mod page_service;
mod placement;
mod ranges;
pub mod store;
mod world;
pub use error::*; pub use id::*; pub use key::*; pub use leaf::*; pub use lock_service::*; pub use message::*; pub use page_service::*; pub use ranges::*; pub use world::*; pub use placement::*;
