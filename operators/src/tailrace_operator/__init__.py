"""The Kubernetes side of Tailrace: the Pipeline resource, and the operator that reconciles a cluster with it.

It shares the configuration's schema and the errors with the pipeline package, and never imports Spark.
"""
