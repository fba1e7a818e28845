"""The Kubernetes side of Tailrace: the Pipeline resource, and what keeps a cluster in line with it.

It shares the configuration's schema and the errors with the pipeline package, and never imports Spark.
"""
