//! URLs of S3, with the environment of the AWS SDKs.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use crate::{BackupObject, Error};

/// Time without a received byte after which a connection is closed and its request is repeated.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum of repetitions of a request: about 15 seconds in total, which is enough for the restart of a
/// server.
const RETRIES: usize = 8;
/// Pause before the first repetition. Each further pause is at most [`BACKOFF_BASE`] times as long as the
/// previous one.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const BACKOFF_BASE: f64 = 3.0;
/// Longest pause before a repetition.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

impl BackupObject {
    /// Returns the backup at `s3://BUCKET/PREFIX`. Credentials and settings come from the environment, under
    /// the names of the AWS SDKs: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
    /// `AWS_REGION` (or `AWS_DEFAULT_REGION`), `AWS_ENDPOINT_URL` (or `AWS_ENDPOINT_URL_S3`) for a server
    /// other than Amazon's, `AWS_WEB_IDENTITY_TOKEN_FILE` with `AWS_ROLE_ARN`, and
    /// `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`. Without credentials, the client requests those of the
    /// machine's role, unless `AWS_EC2_METADATA_DISABLED` is `true`. The files in `~/.aws` are not read.
    ///
    /// # Errors
    ///
    /// [`Error::Url`]: the URL has another form. [`Error::Settings`]: the environment has no credentials, or
    /// an invalid setting.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (store, prefix) = s3(url)?;
        Self::named(store, prefix, url)
    }
}

/// Returns the bucket of `s3://BUCKET/PREFIX` and the prefix.
pub(crate) fn s3(url: &str) -> Result<(Arc<dyn ObjectStore>, &str), Error> {
    let invalid = |reason: &str| Error::Url { url: url.into(), reason: reason.into() };
    let rest = url.strip_prefix("s3://").ok_or_else(|| invalid("write s3://BUCKET/PREFIX"))?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(invalid("the bucket is missing; write s3://BUCKET/PREFIX"));
    }
    if prefix.contains(['?', '#']) {
        return Err(invalid("it has a query or a fragment; write s3://BUCKET/PREFIX"));
    }
    let settings = |reason: String| Error::Settings { url: url.into(), reason };
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_true = |name: &str| env::var(name).is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    let credentials = [
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
    if is_true("AWS_EC2_METADATA_DISABLED") && !credentials.into_iter().any(is_set) {
        let reason = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment";
        return Err(settings(reason.into()));
    }
    // object_store's client uses the default provider of the process. A provider that was installed before is
    // kept.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoint =
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].into_iter().find_map(|name| env::var(name).ok());
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let client = ClientOptions::new()
        .with_timeout_disabled() // the time of a part depends on the bandwidth
        .with_read_timeout(IDLE)
        .with_allow_http(is_plain);
    let backoff = BackoffConfig { init_backoff: FIRST_BACKOFF, max_backoff: MAX_BACKOFF, base: BACKOFF_BASE };
    let retry = RetryConfig { backoff, max_retries: RETRIES, ..RetryConfig::default() };
    let store = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client)
        .with_retry(retry)
        .build()
        .map_err(|error| settings(error.to_string()))?;
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    Ok((store, prefix))
}
