"""Pipeline `promotion`: a challenger that passes the gate becomes champion; rollback; copies;
repair of aliases.
"""

from compo_pipeline.pipelines.promotion.pipeline import create_pipeline

__all__ = ["create_pipeline"]
