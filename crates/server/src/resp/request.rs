//! A request in the read buffer, and an owned one.

use std::ops::Range;

/// One request: its arguments, the command's name first.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) arguments: &'a [Range<usize>],
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(<[u8]>::escape_ascii).map(|e| e.to_string())).finish()
    }
}

impl<'a> Request<'a> {
    /// Returns the number of arguments, the command's name included.
    #[must_use]
    pub const fn len(self) -> usize {
        self.arguments.len()
    }

    /// Returns `true` if there is no command name; such requests are skipped.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.arguments.is_empty()
    }

    /// Returns argument number `at`; empty if there is none.
    #[must_use]
    pub fn arg(self, at: usize) -> &'a [u8] {
        self.arguments.get(at).map_or(&[], |range| &self.bytes[range.clone()])
    }

    /// Returns all arguments.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.arguments.iter().map(move |range| &self.bytes[range.clone()])
    }

    /// Returns the arguments from number `at` on.
    pub fn from(self, at: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.iter().skip(at)
    }

    /// Returns the bytes from the first to the last argument.
    pub(crate) fn bytes(self) -> usize {
        self.arguments.first().zip(self.arguments.last()).map_or(0, |(first, last)| last.end - first.start)
    }

    /// Returns the memory of an owned copy, in bytes.
    pub(crate) fn kept_bytes(self) -> usize {
        self.iter().map(|a| a.len() + size_of::<Range<usize>>()).sum::<usize>() + size_of::<OwnedRequest>()
    }

    pub(crate) fn to_owned(self) -> OwnedRequest {
        OwnedRequest::from_arguments(self.iter())
    }
}

/// An owned request, or another list of arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnedRequest {
    bytes: Vec<u8>,
    arguments: Vec<Range<usize>>,
}

impl OwnedRequest {
    /// Creates a request of these arguments.
    pub(crate) fn from_arguments<'a>(given: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut request = Self::default();
        given.for_each(|argument| request.push(argument));
        request
    }

    /// Appends an argument.
    pub(crate) fn push(&mut self, argument: &[u8]) {
        self.bytes.extend_from_slice(argument);
        self.arguments.push(self.bytes.len() - argument.len()..self.bytes.len());
    }

    pub(crate) fn as_request(&self) -> Request<'_> {
        Request { bytes: &self.bytes, arguments: &self.arguments }
    }
}
