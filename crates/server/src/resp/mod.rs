//! RESP: the request parser and the reply encoder, independent of commands and the store.

mod inline;
mod output;
mod reader;
mod reply;
mod request;

pub(crate) use output::{MAX_PARTS, Output, Sink};
pub(crate) use reader::number;
pub use reader::{ProtocolError, RequestReader, WireLimits};
pub(crate) use reply::{Protocol, Reply};
pub(crate) use request::OwnedRequest;
pub use request::Request;
