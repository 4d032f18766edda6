//! RESP: requests read, replies written. Nothing here knows a command or the store.

mod inline;
mod reply;
mod request;

pub(crate) use reply::{Protocol, Reply};
pub(crate) use request::{OwnedRequest, number};
pub use request::{ProtocolError, Request, RequestReader, WireLimits};
