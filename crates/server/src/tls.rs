//! TLS: encrypted connections of clients.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use crate::channel::Channel;
use crate::error::ServerError;

/// PEM files of the certificates and of the key.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate first, then the intermediate certificates up to the one that clients trust.
    pub certificates: PathBuf,
    /// Private key of the server's certificate.
    pub key: PathBuf,
}

/// Configuration for accepting TLS connections.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<ServerConfig>);

impl Tls {
    pub(crate) fn load(files: &TlsFiles) -> Result<Self, ServerError> {
        let wrong = |path: &Path, reason: String| ServerError::Tls { path: path.to_path_buf(), reason };
        let at = &files.certificates;
        let certificates = CertificateDer::pem_file_iter(at)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrong(at, error.to_string()))?;
        if certificates.is_empty() {
            return Err(wrong(at, "holds no certificate".into()));
        }
        let key =
            PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
            .map_err(|error| wrong(at, error.to_string()))?;
        Ok(Self(Arc::new(config)))
    }

    /// Creates the channel of one connection. The handshake begins with the first bytes.
    pub(crate) fn accept(&self) -> io::Result<Channel> {
        let connection = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        Ok(Channel::Tls(Box::new(connection)))
    }
}
