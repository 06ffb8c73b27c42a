//! `grpc.health.v1.Health`: reports whether the server accepts requests or is shutting down.

use super::pb::cache_server::SERVICE_NAME;
use crate::web::app::App;
use crate::web::connections::LongLivedResponse;
use futures_util::stream::unfold;
use std::time::Duration;
use tokio::time::sleep;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// The interval at which a watch checks the status again.
const WATCH_TIME: Duration = Duration::from_secs(1);

pub(super) struct HealthService(pub(super) App);

fn status(app: &App, service: &str) -> ServingStatus {
    if !["", SERVICE_NAME].contains(&service) {
        ServingStatus::ServiceUnknown
    } else if app.view.is_ready() && !*app.stopping.borrow() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match status(&self.0, &request.get_ref().service) {
            ServingStatus::ServiceUnknown => {
                Err(Status::not_found("The services are \"\" and larder.v1.Cache."))
            }
            status => Ok(Response::new(answer(status))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckResponse>>, Status> {
        let service = request.into_inner().service;
        let statuses = unfold((self.0.clone(), None), move |(app, sent)| {
            let service = service.clone();
            async move {
                let mut stopping = app.stopping.clone();
                loop {
                    let status = status(&app, &service);
                    if sent != Some(status) {
                        return Some((Ok(answer(status)), (app, Some(status))));
                    }
                    if *stopping.borrow() {
                        return None;
                    }
                    tokio::select! {
                        () = sleep(WATCH_TIME) => (),
                        // `changed` fails if the server panicked and dropped the sender.
                        changed = stopping.changed() => changed.ok()?,
                    }
                }
            }
        });
        let mut response = Response::new(Box::pin(statuses) as BoxStream<_>);
        response.extensions_mut().insert(LongLivedResponse);
        Ok(response)
    }
}
